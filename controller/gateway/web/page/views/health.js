// How control, link, gateway and this page themselves are doing.

import { el } from "../dom.js";
import { date } from "../format.js";
import { flag, panel, readout, table } from "../widgets.js";

const WINDOW_S = 10;
const EVERY_S = 0.5;

/** Median, 99 % and largest of the finite values. @param {number[]} values */
export function spread(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const at = (/** @type {number} */ share) =>
    sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? NaN;
  return [at(0.5), at(0.99), at(1)];
}

/** @param {import("../main.js").Page} page */
export function health(page) {
  const { machine, rows } = page,
    { meta } = machine,
    period_s = 1 / meta.rate_hz;
  const timings = [
    ["lateness_s", "wake-up lateness"],
    ["cycle_s", "control cycle"],
    ["exchange_s", "exchange with PLC"],
    ["age_s", "age of PLC status"],
  ].map(([name, word]) => ({
    word,
    column: rows.column(name),
    parts: [readout("s in ms"), readout("s in ms"), readout("s in ms")],
    verdict: flag(),
  }));
  const timing = panel(
    `Timing, last ${WINDOW_S} s`,
    table(
      ["", "median", "99 %", "largest", "of period"],
      timings.map(({ word, parts, verdict }) => [
        el("span", { class: "name" }, word),
        ...parts.map(({ element }) => element),
        verdict.element,
      ]),
      "timing",
    ),
  );
  /** @type {[string, () => [string, ("TRIP" | "STOP" | "WARN" | null)?]][]} */
  const facts = [
    [
      "control link to the PLC",
      () => {
        const word = meta.links[page.value("link")] ?? "no value";
        return [word, word === "UP" ? null : word === "LATE" ? "WARN" : "TRIP"];
      },
    ],
    ["control ticks skipped", () => counted("skipped")],
    ["commands never sent", () => counted("dropped")],
    [
      "forward kinematics",
      () => [`${plain("fk_iterations")} steps, ${(1e3 * page.value("fk_residual_m")).toExponential(1)} mm left`],
    ],
    [
      "recording",
      () => {
        const { recording, recorded } = page.status();
        return recording ? [`${recording}, ${recorded ?? "?"} rows`] : ["NOT RECORDING", "WARN"];
      },
    ],
    ["rows the gateway lost", () => lost(page.status().lost)],
    [
      "MQTT broker",
      () => (page.status().mqtt === false ? ["NOT CONNECTED", "WARN"] : [page.status().mqtt ? "connected" : "no word"]),
    ],
    ["samples MQTT dropped", () => lost(page.status().dropped)],
    ["events dropped", () => lost(page.status().events_dropped)],
    ["pages that look on", () => [String(page.status().viewers ?? "no word")]],
    ["rows this page missed", () => lost(rows.missing)],
    ["rows this page holds", () => [`${rows.next - rows.first} of ${rows.names.length} channels`]],
    ["drawing a picture", () => [`${(1e3 * page.drawing_s()).toFixed(1)} ms`]],
  ];
  const plain = (/** @type {string} */ name) =>
    Number.isFinite(page.value(name)) ? String(page.value(name)) : "no value";
  const lost = (/** @type {number | undefined} */ count) =>
    /** @type {[string, ("WARN" | null)?]} */ (
      count === undefined ? ["no word"] : [String(count), count ? "WARN" : null]
    );
  const counted = (/** @type {string} */ name) =>
    /** @type {[string, ("WARN" | null)?]} */ ([plain(name), page.value(name) > 0 ? "WARN" : null]);
  const lines = facts.map(([word, told]) => ({ word, told, value: flag() }));
  const state = panel(
    "Links and losses",
    table(
      ["", ""],
      lines.map(({ word, value }) => [el("span", { class: "name" }, word), value.element]),
      "facts",
    ),
  );
  const about = panel(
    "What runs here",
    table(
      ["", ""],
      [
        ["site", meta.site],
        ["machine", `${meta.machine}${meta.title ? `: ${meta.title}` : ""}`],
        ["session", meta.session],
        ["started", date(meta.started_unix_s)],
        ["program", `pkm ${meta.version}, ${meta.driver ?? ""}`],
        ["rate", `${meta.rate_hz} Hz`],
        ["configuration", el("code", {}, meta.configuration_sha256 ?? "no value")],
        ["you", `${page.session.user}, ${page.session.role}`],
      ].map(([word, value]) => [el("span", { class: "name" }, word), value]),
      "facts",
    ),
  );
  let drawn_s = -Infinity;
  return {
    element: el("div", { class: "columns" }, el("div", {}, timing.element, about.element), state.element),
    /** @param {import("../main.js").Moment} moment */
    draw({ age_s, worth, now_s }) {
      timing.draw(age_s, worth);
      state.draw(age_s, worth);
      if (now_s - drawn_s < EVERY_S) return;
      drawn_s = now_s;
      const from = Math.max(rows.first, rows.next - Math.ceil(WINDOW_S * meta.rate_hz));
      for (const { column, parts, verdict } of timings) {
        const values = Array.from({ length: rows.next - from }, (_, k) => rows.value(from + k, column));
        const found = spread(values);
        found.forEach((value, k) => parts[k].draw(value, worth));
        const share = found[2] / period_s;
        verdict.draw(Number.isFinite(share) ? `${(100 * share).toFixed(0)} %` : "no value", null);
      }
      for (const { told, value } of lines) value.draw(...withNull(told()));
    },
  };
}

/** @param {[string, ("TRIP" | "STOP" | "WARN" | null)?]} told @returns {[string, "TRIP" | "STOP" | "WARN" | null]} */
function withNull([word, effect]) {
  return [word, effect ?? null];
}
