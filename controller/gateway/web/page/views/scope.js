// An oscilloscope on the rows: every tick, a trigger found by its row, what came before it, cursors, CSV.

import { el, heads, save, text } from "../dom.js";
import { label, number, parse, shown } from "../format.js";
import { createPicker } from "../picker.js";
import { createPlot, curve } from "../plot.js";
import { createTrigger } from "../trigger.js";

const WIDTHS_S = [0.2, 0.5, 1, 2, 5, 10, 20];

/** @param {import("../main.js").Page} page */
export function scope(page) {
  const { machine, rows } = page,
    time = rows.column("t_s"),
    { rate_hz } = machine.meta;
  /** @type {ReturnType<typeof createPlot> | null} */
  let plot = null;
  /** @type {ReturnType<typeof createTrigger> | null} */
  let trigger = null;
  /** @type {import("../trigger.js").Capture | null} */
  let capture = null;
  /** @type {Float64Array} */
  let kept = new Float64Array(0); // the rows of the capture: the ring goes on
  /** @type {(number | null)[]} */
  let cursors = [null, null];
  let hovered = /** @type {number | null} */ (null);

  const place = el("div", { class: "plot-place" });
  const picker = createPicker(machine, machine.telling, rebuild);
  const source = select(
    "trigger channel",
    machine.channels.map(({ name, unit }) => [name, label(name, unit)]),
    machine.telling[1],
  );
  const level = /** @type {HTMLInputElement} */ (
    el("input", { type: "text", value: "0", "aria-label": "trigger level", size: 8 })
  );
  const unit = el("span", { class: "unit" });
  const edge = select(
    "edge",
    [
      ["rising", "rising"],
      ["falling", "falling"],
      ["either", "either"],
    ],
    "rising",
  );
  const mode = select(
    "mode",
    [
      ["single", "single"],
      ["normal", "normal"],
      ["auto", "auto"],
    ],
    "normal",
  );
  const width = select(
    "width",
    WIDTHS_S.map((s) => [String(s), `${s} s`]),
    "2",
  );
  const before = select(
    "before the trigger",
    [0, 10, 25, 50, 75, 90].map((share) => [String(share), `${share} %`]),
    "25",
  );
  const arm = el("button", { type: "button", class: "small", onclick: start }, "Arm");
  const stop = el(
    "button",
    {
      type: "button",
      class: "small",
      onclick: () => {
        trigger = null;
        tell();
      },
    },
    "Hold",
  );
  const csv = /** @type {HTMLButtonElement} */ (
    el("button", { type: "button", class: "small", disabled: true, onclick: saveCsv }, "Save CSV")
  );
  const said = el("output", { class: "scope-state", "aria-live": "polite" });
  const cursorTable = el("div", { class: "cursors" });
  source.addEventListener("change", () => nameLevel(true));

  /** @param {boolean} fresh  take the present value for the level */
  function nameLevel(fresh) {
    text(unit, shown(machine.unit(source.value)).unit);
    const now = page.value(source.value);
    if (fresh && Number.isFinite(now)) level.value = number(now, machine.unit(source.value)).replace("−", "-");
  }

  function start() {
    const si = parse(level.value, machine.unit(source.value));
    if (!Number.isFinite(si)) {
      text(said, "The level is no number.");
      return;
    }
    const ticks = Math.max(2, Math.round(Number(width.value) * rate_hz));
    trigger = createTrigger(
      {
        edge: /** @type {any} */ (edge.value),
        mode: /** @type {any} */ (mode.value),
        level: si,
        width: ticks,
        before: Math.round((ticks * Number(before.value)) / 100),
      },
      rows.next,
    );
    tell();
  }

  function rebuild() {
    plot?.end();
    plot = createPlot("s from the trigger", picker.names(), machine.unit, {
      markers,
      oncursor: (index) => {
        hovered = index;
        readCursors();
      },
    });
    plot.plot.over.addEventListener("click", () => {
      const second = cursors[0] !== null && cursors[1] === null;
      if (hovered !== null) cursors = second ? [cursors[0], hovered] : [hovered, null];
      plot?.plot.redraw(false);
      readCursors();
    });
    place.replaceChildren(plot.element);
    show();
  }

  /** The trigger and the two cursors. @param {any} u */
  function markers(u) {
    const { ctx, bbox } = u;
    ctx.save();
    for (const [x, colour, dash] of [
      [0, "#22272b", [2, 4]],
      ...cursors.filter((c) => c !== null).map((c) => [u.data[0][/** @type {number} */ (c)], "#7a4b00", []]),
    ]) {
      if (x === undefined || !capture) continue;
      const at = Math.round(u.valToPos(x, "x", true));
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.strokeStyle = colour;
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Keep the rows of a capture. @param {import("../trigger.js").Capture} found */
  function keep(found) {
    capture = found;
    const columns = rows.names.length;
    kept = new Float64Array((found.to - found.from) * columns);
    for (let row = found.from; row < found.to; row++) {
      for (let k = 0; k < columns; k++) kept[(row - found.from) * columns + k] = rows.value(row, k);
    }
    cursors = [null, null];
    csv.disabled = false;
    show();
  }

  /** The capture as something with rows. @returns {import("../rows.js").Rows} */
  function held() {
    const columns = rows.names.length,
      from = capture?.from ?? 0;
    return { ...rows, value: (row, column) => (column < 0 ? NaN : (kept[(row - from) * columns + column] ?? NaN)) };
  }

  function show() {
    if (!plot || !capture) return;
    const { from, to, at } = capture,
      view = held(),
      zero_s = view.value(at, time);
    const x = curve(view, "t_s", "1", from, to).map((t) => (t ?? 0) - zero_s);
    plot.set([x, ...picker.names().map((name) => curve(view, name, machine.unit(name), from, to))]);
    readCursors();
    tell();
  }

  function tell() {
    const phase = trigger
      ? { armed: "Armed: waits for the trigger", triggered: "Triggered: fills the picture", done: "Holds" }[
          trigger.phase
        ]
      : capture
        ? "Holds"
        : "Choose what triggers, then Arm";
    const cause = capture?.forced ? "no trigger, newest row" : "trigger at row";
    const what = capture
      ? ` — ${cause} ${capture.at}, t = ${number(held().value(capture.at, time), "1", 3)} s, ` +
        `rows ${capture.from} … ${capture.to - 1}`
      : "";
    text(said, phase + what);
  }

  function readCursors() {
    picker.names().forEach((name, k) => {
      const value = capture && hovered !== null ? plot?.plot.data[k + 1]?.[hovered] : undefined;
      picker.tell(name, value === undefined ? "" : value === null ? "no value" : number(value, "1", 3));
    });
    const data = plot?.plot.data;
    if (!data || !capture) return;
    const points = [cursors[0] ?? hovered, cursors[1] ?? (cursors[0] === null ? null : hovered)];
    const at = (/** @type {number} */ k, /** @type {number | null} */ p) =>
      p === null ? null : (data[k]?.[p] ?? null);
    const cell = (/** @type {number | null} */ v, digits = 3) => (v === null ? "no value" : number(v, "1", digits));
    const both = points[1] !== null;
    cursorTable.replaceChildren(
      ...(points[0] === null
        ? [
            el(
              "p",
              { class: "quiet" },
              "Point at the picture to read it. A press sets a cursor, a second one the other.",
            ),
          ]
        : [
            el(
              "table",
              {},
              heads(["", "at 1", ...(both ? ["at 2", "2 − 1"] : [])]),
              el(
                "tbody",
                {},
                ...["time [s]", ...picker.names().map((name) => label(name, machine.unit(name)))].map((word, k) => {
                  const a = at(k, points[0]),
                    b = at(k, points[1]);
                  return el(
                    "tr",
                    {},
                    el("td", {}, word),
                    el("td", {}, cell(a)),
                    ...(both
                      ? [el("td", {}, cell(b)), el("td", {}, cell(a === null || b === null ? null : b - a))]
                      : []),
                  );
                }),
              ),
            ),
          ]),
    );
  }

  function saveCsv() {
    if (!capture) return;
    const names = picker.names().filter((name) => name !== "t_s"),
      view = held();
    const head = ["row", "t_s", ...names],
      lines = [head.join(",")];
    for (let row = capture.from; row < capture.to; row++) {
      lines.push(
        [
          row,
          ...head.slice(1).map((name) => {
            const value = view.value(row, rows.column(name));
            return Number.isFinite(value) ? value : "";
          }),
        ].join(","),
      );
    }
    save(`${machine.meta.site}-${machine.meta.session}-row-${capture.at}.csv`, `${lines.join("\n")}\n`, "text/csv");
  }

  nameLevel(false);
  tell();
  return {
    element: el(
      "div",
      { class: "scope" },
      el("div", { class: "tools" }, picker.element),
      el(
        "div",
        { class: "tools" },
        named("trigger", source),
        named("level", el("span", {}, level, " ", unit)),
        named("edge", edge),
        named("mode", mode),
        named("width", width),
        named("before", before),
        arm,
        stop,
        csv,
      ),
      said,
      el("div", { class: "scope-main" }, place, cursorTable),
    ),
    draw() {
      if (!plot) rebuild();
      if (level.value === "0" && !trigger) nameLevel(true);
      if (!trigger) return;
      const column = rows.column(source.value),
        phase = trigger.phase;
      const found = trigger.take((row) => rows.value(row, column), rows.first, rows.next);
      if (found) keep(found);
      else if (trigger.phase !== phase) tell();
    },
  };
}

/** @param {string} word @param {Node} control */
function named(word, control) {
  return el("label", { class: "named" }, el("span", { class: "name" }, word), control);
}

/** @param {string} name @param {string[][]} choices @param {string} chosen @returns {HTMLSelectElement} */
function select(name, choices, chosen) {
  const found = /** @type {HTMLSelectElement} */ (
    el("select", { "aria-label": name }, ...choices.map(([value, word]) => el("option", { value }, word)))
  );
  if (choices.some(([value]) => value === chosen)) found.value = chosen;
  return found;
}
