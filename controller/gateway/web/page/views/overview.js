// What an operator looks at: pose, legs, forces, and what bounds the motion.

import { el } from "../dom.js";
import { namesOf } from "../alarms.js";
import { bar, flag, panel, readout, table } from "../widgets.js";
import { forcesView } from "./forces.js";
import { legsView } from "./legs.js";
import { poseView } from "./pose.js";

const NEAR = 0.1;
/** @type {Record<string, string>} */
const KINDS = {
  stroke: "stroke",
  pose: "pose",
  swing: "joint swing",
  condition: "singularity",
  speed: "leg speed",
  force: "leg force",
};

/** How much is left of each kind of limit, and which clamps act. @param {import("../main.js").Page} page */
function reservesView(page) {
  const lines = Object.entries(KINDS)
    .filter(([kind]) => page.machine.has(`reserve_${kind}`))
    .map(([kind, word]) => ({
      word,
      value: readout("1", 0, `left of ${word}`),
      bar: bar(),
      read: page.reader(`reserve_${kind}`),
    }));
  const clamps = flag();
  const frame = panel(
    "Left of the limits",
    table(
      ["", "left", ""],
      lines.map(({ word, value, bar }) => [
        el("span", { class: "name" }, word),
        el("span", {}, value.element, el("span", { class: "unit" }, "%")),
        bar.element,
      ]),
      "reserves",
    ),
    el("p", { class: "line" }, clamps.element),
  );
  return {
    element: frame.element,
    /** @param {import("../main.js").Moment} moment */
    draw({ age_s, worth }) {
      frame.draw(age_s, worth);
      for (const { value, bar, read } of lines) {
        const left = read();
        value.draw(Math.round(100 * left), worth);
        bar.draw(left, 0, 1, NaN, left < 0 ? "beyond" : left < NEAR ? "near" : "");
      }
      const acting = namesOf(page.value("limits"), page.machine.meta.limit_bits);
      const known = worth !== "none" && Number.isFinite(page.value("limits"));
      clamps.draw(
        known ? (acting.length ? `CLAMPED: ${acting.join(", ")}` : "Nothing is clamped.") : "no data",
        acting.length && known ? "WARN" : null,
      );
    },
  };
}

/** @param {import("../main.js").Page} page */
export function overview(page) {
  const parts = [poseView(page), legsView(page), forcesView(page), reservesView(page)];
  return {
    element: el("div", { class: "overview" }, ...parts.map(({ element }) => element)),
    /** @param {import("../main.js").Moment} moment */
    draw(moment) {
      for (const part of parts) part.draw(moment);
    },
  };
}
