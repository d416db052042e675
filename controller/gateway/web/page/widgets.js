// Small parts that several views show: alarm symbols, readouts, bars, panels.

import { attribute, el, heads, svg, text } from "./dom.js";
import { age, number, shown } from "./format.js";

/** @typedef {"live" | "stale" | "none"} Worth */

const SHAPES = {
  // colour is never alone: each urgency has a shape and a word of its own
  TRIP: ["rect", { x: 2, y: 2, width: 20, height: 20 }, "!"],
  STOP: ["polygon", { points: "12,1 23,22 1,22" }, "!"],
  WARN: ["polygon", { points: "12,1 23,12 12,23 1,12" }, "!"],
};

/** Colour and shape of an urgency; the word stands beside it. @param {"TRIP" | "STOP" | "WARN"} effect */
export function symbol(effect) {
  const [shape, place, mark] = SHAPES[effect];
  return svg(
    "svg",
    { viewBox: "0 0 24 24", class: `symbol ${effect.toLowerCase()}`, role: "img", "aria-label": effect },
    svg(/** @type {string} */ (shape), /** @type {any} */ (place)),
    svg("text", { x: 12, y: 19, "text-anchor": "middle" }, /** @type {string} */ (mark)),
  );
}

/**
 * A number with its unit. `draw` takes SI; after too long without data it says so in place of the number.
 * @param {string} unit @param {number} [digits] @param {string} [name]  for those who hear the page
 */
export function readout(unit, digits, name) {
  const value = el("span", { class: "value" }, "no data");
  const element = el(
    "span",
    { class: "readout", "aria-label": name },
    value,
    el("span", { class: "unit" }, shown(unit).unit),
  );
  return {
    element,
    /** @param {number} si @param {Worth} worth */
    draw(si, worth) {
      const word = worth === "none" ? "no data" : number(si, unit, digits);
      text(value, word);
      attribute(element, "data-worth", worth === "live" && !Number.isFinite(si) ? "missing" : worth);
    },
  };
}

/**
 * A bar over a range: where the value is, where it should be, and the range itself.
 * @param {{zero?: boolean}} [how]  zero: filled from 0, not from the low end
 */
export function bar({ zero = false } = {}) {
  const fill = el("span", { class: "bar-fill" });
  const mark = el("span", { class: "bar-mark", hidden: true });
  const element = el("span", { class: "bar", "aria-hidden": "true" }, fill, mark);
  const share = (/** @type {number} */ value, /** @type {number} */ low, /** @type {number} */ high) =>
    Math.min(1, Math.max(0, (value - low) / (high - low)));
  let drawn = "";
  return {
    element,
    /**
     * @param {number} value @param {number} low @param {number} high @param {number} wanted  NaN: no mark
     * @param {"" | "near" | "beyond"} [state]
     */
    draw(value, low, high, wanted, state = "") {
      const at = share(value, low, high),
        from = zero ? share(0, low, high) : 0;
      const to = share(wanted, low, high);
      const now = `${at.toFixed(3)} ${from} ${to.toFixed(3)} ${state}`;
      if (now === drawn) return;
      drawn = now;
      fill.hidden = !Number.isFinite(at);
      fill.style.left = `${100 * Math.min(at, from)}%`;
      fill.style.width = `${100 * Math.abs(at - from)}%`;
      mark.hidden = !Number.isFinite(to);
      mark.style.left = `${100 * to}%`;
      attribute(element, "data-state", state || null);
    },
  };
}

/**
 * A titled part of a view, with the age of what it shows.
 * @param {string} title @param {...(Node | string)} content
 */
export function panel(title, ...content) {
  const old = el("span", { class: "panel-age" });
  const element = el("section", { class: "panel", "aria-label": title }, el("h2", {}, title, old), ...content);
  return {
    element,
    /** @param {number} age_s @param {Worth} worth */
    draw(age_s, worth) {
      text(old, worth === "none" ? "no data" : `${worth === "stale" ? "STALE, " : ""}age ${age(age_s)}`);
      attribute(old, "data-worth", worth);
    },
  };
}

/**
 * A table with one head line.
 * @param {(string | Node)[]} head @param {(string | Node)[][]} lines @param {string} [kind]  a class
 */
export function table(head, lines, kind = "") {
  return el(
    "table",
    { class: kind },
    heads(head),
    el("tbody", {}, ...lines.map((line) => el("tr", {}, ...line.map((cell) => el("td", {}, cell))))),
  );
}

/** A word with the colour and shape of an urgency, or plain grey. */
export function flag() {
  const place = el("span", { class: "flag-symbol" }),
    word = el("span", {});
  const element = el("span", { class: "flag" }, place, word);
  let drawn = "";
  return {
    element,
    /** @param {string} said @param {"TRIP" | "STOP" | "WARN" | null} effect */
    draw(said, effect) {
      text(word, said);
      if (drawn === String(effect)) return;
      drawn = String(effect);
      attribute(element, "data-effect", effect);
      place.replaceChildren(...(effect ? [symbol(effect)] : []));
    },
  };
}
