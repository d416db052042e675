// Curves over time with uPlot: one axis a quantity, the same colours everywhere, gaps where there are no rows.

import uPlot from "./vendor/uPlot.esm.js";
import { el } from "./dom.js";
import { label, quantityOf, shown } from "./format.js";

// told apart by eye on light grey, also with weak colour vision; the dash tells them apart in print
export const COLOURS = ["#005f9e", "#b35900", "#00755e", "#9e2a6d", "#5b5b00", "#6a3fb5", "#00708a", "#404040"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 4], [12, 4], [6, 2], [1, 2]];
const MOST_AXES = 4; // the others are drawn to their own range, and read with the cursor
const GRID = "#c3c7ca",
  INK = "#22272b";

/**
 * @param {string} x  what stands below @param {string[]} names @param {(name: string) => string} unit
 * @param {{markers?: (plot: any) => void, oncursor?: (index: number | null) => void}} [also]
 */
export function createPlot(x, names, unit, { markers, oncursor } = {}) {
  const scale = (/** @type {string} */ name) => quantityOf(name, unit(name));
  const scales = [...new Set(names.map(scale))];
  const place = el("div", { class: "plot", role: "img", "aria-label": `curves of ${names.join(", ")}` });
  const options = {
    width: 300,
    height: 200,
    legend: { show: false },
    cursor: { drag: { x: true, y: false }, points: { size: 6 } },
    scales: { x: { time: false }, ...Object.fromEntries(scales.map((one) => [one, {}])) },
    axes: [
      {
        label: x,
        stroke: INK,
        grid: { stroke: GRID, width: 1 },
        ticks: { stroke: GRID },
        labelSize: 20,
        size: 34,
        font: "12px system-ui",
        labelFont: "12px system-ui",
      },
      ...scales.slice(0, MOST_AXES).map((one, k) => ({
        scale: one,
        label: one,
        side: k % 2 ? 1 : 3,
        stroke: INK,
        size: 64,
        labelSize: 18,
        grid: { show: k === 0, stroke: GRID, width: 1 },
        ticks: { stroke: GRID },
        font: "12px system-ui",
        labelFont: "12px system-ui",
      })),
    ],
    series: [
      {},
      ...names.map((name, k) => ({
        label: label(name, unit(name)),
        scale: scale(name),
        stroke: COLOURS[k % COLOURS.length],
        width: 1.5,
        dash: DASHES[k % DASHES.length],
        points: { show: false },
        spanGaps: false,
      })),
    ],
    hooks: {
      draw: markers ? [markers] : [],
      setCursor: oncursor ? [(/** @type {any} */ plot) => oncursor(plot.cursor.idx ?? null)] : [],
    },
  };
  const plot = new uPlot(options, [[], ...names.map(() => [])], place);
  const watch = new ResizeObserver(() => {
    const { clientWidth: width, clientHeight: height } = place;
    if (width > 50 && height > 50 && (width !== plot.width || height !== plot.height)) plot.setSize({ width, height });
  });
  watch.observe(place);
  return {
    element: place,
    plot,
    /** @param {(number | null)[][]} data x, then a list a name, in shown units @param {boolean} [keep] the zoom */
    set: (data, keep = false) => plot.setData(data, !keep),
    end() {
      watch.disconnect();
      plot.destroy();
    },
  };
}

/**
 * Values of a channel in shown units, null where there is none.
 * @param {import("./rows.js").Rows} rows
 * @param {string} name
 * @param {string} unit
 * @param {number} from
 * @param {number} to
 */
export function curve(rows, name, unit, from, to) {
  const column = rows.column(name),
    { factor } = shown(unit);
  /** @type {(number | null)[]} */
  const values = new Array(Math.max(0, to - from));
  for (let row = from; row < to; row++) {
    const value = rows.value(row, column);
    values[row - from] = Number.isFinite(value) ? value * factor : null;
  }
  return values;
}

/**
 * The same with at most two points for each of so many stretches: the smallest and the largest value, in their order. A
 * peak of one row stays visible, and a minute at a high rate is not more to draw than the picture is wide.
 * @param {import("./rows.js").Rows} rows @param {string} name @param {string} unit
 * @param {number} from @param {number} to @param {number} stretches
 */
export function envelope(rows, name, unit, from, to, stretches) {
  const width = Math.ceil((to - from) / stretches);
  if (width <= 2) return curve(rows, name, unit, from, to);
  const column = rows.column(name),
    { factor } = shown(unit);
  /** @type {(number | null)[]} */
  const values = [];
  for (let start = from; start < to; start += width) {
    let low = Infinity,
      high = -Infinity,
      lowAt = start,
      highAt = start;
    for (let row = start; row < Math.min(start + width, to); row++) {
      const value = rows.value(row, column);
      if (value < low) [low, lowAt] = [value, row];
      if (value > high) [high, highAt] = [value, row];
    }
    const pair = lowAt <= highAt ? [low, high] : [high, low];
    values.push(...pair.map((value) => (Number.isFinite(value) ? value * factor : null)));
  }
  return values;
}
