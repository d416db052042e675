// Chosen channels over the last seconds, from history at once.

import { el, text } from "../dom.js";
import { number } from "../format.js";
import { createPicker } from "../picker.js";
import { createPlot, envelope } from "../plot.js";

const EVERY_S = 0.1;
const STRETCHES = 1500; // about the pixels of a wide screen
const WINDOWS_S = [10, 30, 60];

/** @param {import("../main.js").Page} page */
export function trends(page) {
  const { machine, rows } = page,
    time = rows.column("t_s");
  let window_s = 60,
    held = false,
    drawn_s = -Infinity,
    drawnTo = -1;
  /** @type {ReturnType<typeof createPlot> | null} */
  let plot = null;
  const place = el("div", { class: "plot-place" });
  const picker = createPicker(machine, machine.telling, rebuild);
  const hold = el(
    "button",
    {
      type: "button",
      class: "small",
      "aria-pressed": "false",
      onclick: () => {
        held = !held;
        hold.setAttribute("aria-pressed", String(held));
        text(hold, held ? "Go on" : "Hold");
      },
    },
    "Hold",
  );
  const widths = el(
    "div",
    { class: "choice", role: "group", "aria-label": "seconds shown" },
    ...WINDOWS_S.map((seconds) =>
      el(
        "button",
        {
          type: "button",
          class: "small",
          "aria-pressed": String(seconds === window_s),
          onclick: (/** @type {MouseEvent} */ { currentTarget }) => {
            window_s = seconds;
            for (const other of widths.children) other.setAttribute("aria-pressed", String(other === currentTarget));
            drawnTo = -1;
          },
        },
        `${seconds} s`,
      ),
    ),
  );

  function rebuild() {
    plot?.end();
    plot = createPlot("s before the newest row", picker.names(), machine.unit, { oncursor: tell });
    place.replaceChildren(plot.element);
    drawnTo = -1;
  }

  /** @param {number | null} index */
  function tell(index) {
    if (!plot) return;
    picker.names().forEach((name, k) => {
      const values = plot?.plot.data[k + 1] ?? [],
        value = index === null ? values[values.length - 1] : values[index];
      picker.tell(name, value === null || value === undefined ? "no value" : number(value, "1", 3));
    });
  }

  return {
    element: el("div", { class: "trends" }, el("div", { class: "tools" }, widths, hold, picker.element), place),
    /** @param {import("../main.js").Moment} moment */
    draw({ now_s }) {
      if (!plot) rebuild();
      if (held || now_s - drawn_s < EVERY_S || rows.next === drawnTo || !plot) return;
      drawn_s = now_s;
      drawnTo = rows.next;
      const newest_s = rows.value(rows.next - 1, time);
      let from = Math.max(rows.first, rows.next - Math.ceil(window_s * machine.meta.rate_hz));
      while (from < rows.next && rows.value(from, time) < newest_s - window_s) from++;
      const x = envelope(rows, "t_s", "1", from, rows.next, STRETCHES).map((t) => (t ?? 0) - newest_s);
      plot.set([
        x,
        ...picker.names().map((name) => envelope(rows, name, machine.unit(name), from, rows.next, STRETCHES)),
      ]);
      plot.plot.setScale("x", { min: -window_s, max: 0 });
      tell(plot.plot.cursor.idx ?? null);
    },
  };
}
