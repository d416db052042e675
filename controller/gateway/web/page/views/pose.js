// Where the platform is, against where it should be and what its limits are.

import { el } from "../dom.js";
import { bar, panel, readout, table } from "../widgets.js";

const FIXED = 0.002; // m or rad: a smaller range only leaves room for rounding
const NEAR = 0.05; // share of the range

/** @param {import("../main.js").Page} page */
export function poseView(page) {
  const lines = page.machine.coordinates.map((coordinate) => {
    const { name, word, unit, low, high } = coordinate;
    const fixed = high - low <= FIXED;
    const parts = {
      ...coordinate,
      fixed,
      value: readout(unit, undefined, word),
      wanted: readout(unit, undefined, `${word} set-point`),
      difference: readout(unit, undefined, `${word} difference`),
      bar: bar(),
      read: page.reader(name),
      reference: page.reader(`reference_${name}`),
    };
    return parts;
  });
  const frame = panel(
    "Pose",
    table(
      ["", "measured", "set-point", "difference", "in its limits"],
      lines.map((line) => [
        el("span", { class: "name" }, line.word),
        line.value.element,
        line.wanted.element,
        line.difference.element,
        line.fixed ? el("span", { class: "quiet" }, "fixed") : line.bar.element,
      ]),
      "pose",
    ),
  );
  return {
    element: frame.element,
    /** @param {import("../main.js").Moment} moment */
    draw({ age_s, worth }) {
      frame.draw(age_s + page.value("age_s"), worth);
      for (const { value, wanted, difference, bar, read, reference, low, high, fixed } of lines) {
        const x = read(),
          target = reference();
        value.draw(x, worth);
        wanted.draw(target, worth);
        difference.draw(target - x, worth);
        const margin = NEAR * (high - low);
        const state = x < low || x > high ? "beyond" : x < low + margin || x > high - margin ? "near" : "";
        if (!fixed) bar.draw(x, low, high, target, state);
      }
    },
  };
}
