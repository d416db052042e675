// The legs in their strokes, with what is sent to them and how far they lag.

import { el } from "../dom.js";
import { bar, panel, readout, table } from "../widgets.js";

const NEAR = 0.05; // share of the stroke

/** @param {import("../main.js").Page} page */
export function legsView(page) {
  const { limits } = page.machine.meta;
  const lines = page.machine.legs.map((i) => ({
    i,
    low: limits.length_min_m[i - 1],
    high: limits.length_max_m[i - 1],
    length: readout("m", 2, `leg ${i} length`),
    error: readout("m", 3, `leg ${i} following error`),
    speed: readout("m/s", 1, `leg ${i} speed`),
    bar: bar(),
    read: page.reader(`length_${i}_m`),
    sent: page.reader(`command_${i}_m`),
    lag: page.reader(`following_error_${i}_m`),
    rate: page.reader(`length_${i}_m_s`),
  }));
  const frame = panel(
    "Legs",
    table(
      ["", "length", "in its stroke", "lag", "speed"],
      lines.map(({ i, length, bar, error, speed }) => [
        el("span", { class: "name" }, `leg ${i}`),
        length.element,
        bar.element,
        error.element,
        speed.element,
      ]),
      "legs",
    ),
  );
  return {
    element: frame.element,
    /** @param {import("../main.js").Moment} moment */
    draw({ age_s, worth }) {
      frame.draw(age_s + page.value("age_s"), worth);
      for (const { length, error, speed, bar, read, sent, lag, rate, low, high } of lines) {
        const q = read(),
          margin = NEAR * (high - low);
        length.draw(q, worth);
        error.draw(lag(), worth);
        speed.draw(rate(), worth);
        bar.draw(
          q,
          low,
          high,
          sent(),
          q < low || q > high ? "beyond" : q < low + margin || q > high - margin ? "near" : "",
        );
      }
    },
  };
}
