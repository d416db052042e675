// The alarm banner on every view: what nobody has seen yet stands out, the oldest first.

import { attribute, el, text } from "./dom.js";
import { clock } from "./format.js";
import { symbol } from "./widgets.js";

const LINES = 3; // more are counted
const WORDS = { TRIP: "TRIP", STOP: "STOP", WARN: "WARNING" };

/**
 * @param {() => import("./alarms.js").Alarm[]} list
 * @param {() => import("./alarms.js").Seen & {count: number} | null} last
 * @param {() => void} acknowledge @param {() => string} whyNot  why the operator may not, empty if he may
 */
export function createBanner(list, last, acknowledge, whyNot) {
  const lines = el("ol", { class: "alarm-lines" });
  const quiet = el("span", { class: "quiet" });
  const more = el("span", { class: "alarm-more" });
  const button = el("button", { type: "button", class: "acknowledge", onclick: acknowledge }, "Acknowledge");
  const element = el(
    "section",
    { class: "banner", "aria-label": "Alarms", "aria-live": "assertive" },
    lines,
    quiet,
    el("div", { class: "banner-side" }, more, button),
  );
  let drawn = "";
  return {
    element,
    draw() {
      const alarms = list(),
        unseen = alarms.filter(({ seen }) => !seen),
        before = last(),
        why = whyNot();
      const now = JSON.stringify([alarms, before, why]);
      if (now === drawn) return;
      drawn = now;
      attribute(element, "data-state", unseen.length ? "unseen" : alarms.length ? "seen" : "none");
      lines.replaceChildren(...alarms.slice(0, LINES).map(line));
      text(
        quiet,
        alarms.length
          ? ""
          : before
            ? `No alarms. The last (${before.count}) acknowledged by ${before.who} at ${clock(before.t)}.`
            : "No alarms.",
      );
      text(more, alarms.length > LINES ? `and ${alarms.length - LINES} more, see Events` : "");
      button.hidden = unseen.length === 0;
      attribute(button, "disabled", why ? "" : null);
      attribute(button, "title", why || null);
    },
  };
}

/** @param {import("./alarms.js").Alarm} alarm */
function line({ name, meaning, effect, since, stands, seen, times }) {
  const when = Number.isFinite(since) ? clock(since, true) : "before this page began";
  return el(
    "li",
    { class: `alarm ${seen ? "seen" : "unseen"} ${effect.toLowerCase()}`, "data-alarm": name },
    symbol(effect),
    el("strong", { class: "alarm-word" }, WORDS[effect]),
    el("span", { class: "alarm-time" }, when),
    el("strong", {}, name),
    el("span", { class: "alarm-meaning" }, meaning),
    el(
      "span",
      { class: "alarm-state" },
      [
        stands ? "stands" : "is gone",
        ...(times > 1 ? [`came ${times} times`] : []),
        ...(seen ? [`acknowledged by ${seen.who} at ${clock(seen.t)}`] : []),
      ].join(", "),
    ),
  );
}
