// What happened, newest first: filtered by kind and by words, with who asked for it.

import { attribute, el, heads, text } from "../dom.js";
import { clock, date } from "../format.js";
import { symbol } from "../widgets.js";

const MOST_LINES = 300;
const MOST_VALUES = 4;
/** @type {Record<string, string[]>} */
const GROUPS = {
  all: [],
  faults: ["fault_set", "fault_cleared", "acknowledged"],
  modes: ["mode", "link"],
  requests: ["request"],
  limits: ["limit_entered", "limit_left"],
  sensors: ["sensor", "not_finite"],
};
const OTHER = "others";

/** @param {import("../main.js").Page} page @param {() => void} acknowledge */
export function eventsView(page, acknowledge) {
  const effects = new Map(page.machine.meta.faults.map((/** @type {any} */ row) => [row.name, row.effect]));
  let group = "all",
    drawn = "";
  const search = /** @type {HTMLInputElement} */ (
    el("input", { type: "search", placeholder: "find words", "aria-label": "find words", oninput: () => (drawn = "") })
  );
  const groups = el(
    "div",
    { class: "choice", role: "group", "aria-label": "kinds of events" },
    ...[...Object.keys(GROUPS), OTHER].map((name) =>
      el(
        "button",
        {
          type: "button",
          class: "small",
          "aria-pressed": String(name === group),
          onclick: (/** @type {MouseEvent} */ { currentTarget }) => {
            group = name;
            drawn = "";
            for (const other of groups.children) other.setAttribute("aria-pressed", String(other === currentTarget));
          },
        },
        name,
      ),
    ),
  );
  const button = el("button", { type: "button", class: "small", onclick: acknowledge }, "Acknowledge alarms");
  const body = el("tbody", {});
  const count = el("p", { class: "quiet" });

  /** @param {import("../alarms.js").Event} event */
  function wanted({ kind, code, text: words, who }) {
    const known = Object.values(GROUPS).flat();
    if (group === OTHER ? known.includes(kind) : group !== "all" && !GROUPS[group].includes(kind)) return false;
    const all = `${kind} ${code} ${words} ${who ?? ""}`.toLowerCase();
    return search.value
      .toLowerCase()
      .split(/\s+/)
      .every((word) => all.includes(word));
  }

  return {
    element: el(
      "div",
      { class: "events" },
      el("div", { class: "tools" }, groups, search, button),
      el(
        "div",
        { class: "scroll" },
        el("table", {}, heads(["time", "", "what", "who", "values"]), body),
      ),
      count,
    ),
    draw() {
      const events = page.events(),
        newest = events[events.length - 1];
      const why = page.whyNotAcknowledge();
      attribute(button, "disabled", why ? "" : null);
      attribute(button, "title", why || null);
      const now = `${group} ${search.value} ${events.length} ${newest?.t} ${newest?.text}`;
      if (now === drawn) return;
      drawn = now;
      const fitting = events.filter(wanted);
      body.replaceChildren(
        ...fitting
          .slice(-MOST_LINES)
          .reverse()
          .map((event) => line(event, effects)),
      );
      text(
        count,
        `${fitting.length} of ${events.length} events` +
          (fitting.length > MOST_LINES ? `, the newest ${MOST_LINES} shown` : "") +
          "; the recording has them all.",
      );
    },
  };
}

/** @param {import("../alarms.js").Event} event @param {Map<string, any>} effects */
function line({ t, kind, code, text: words, values, who }, effects) {
  const effect = kind === "fault_set" ? effects.get(code) : null;
  const numbers = Object.entries(values ?? {}).map(
    ([name, value]) => `${name} ${value === null ? "no value" : shortened(value)}`,
  );
  return el(
    "tr",
    { "data-kind": kind },
    el("td", { title: date(t) }, clock(t, true)),
    el("td", {}, effect ? symbol(effect) : ""),
    el("td", {}, words),
    el("td", {}, who ?? ""),
    el(
      "td",
      { class: "quiet values" },
      numbers.slice(0, MOST_VALUES).join(", ") +
        (numbers.length > MOST_VALUES ? ` and ${numbers.length - MOST_VALUES} more` : ""),
    ),
  );
}

/** Channels here bear their SI names, so their values are SI too. @param {number} value */
function shortened(value) {
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
}
