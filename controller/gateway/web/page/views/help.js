// What this page shows and which keys it knows.

import { el } from "../dom.js";
import { symbol, table } from "../widgets.js";

/** @param {string[]} names  of the views */
export function help(names) {
  /** @type {[("TRIP" | "STOP" | "WARN"), string, string][]} */
  const alarms = [
    ["TRIP", "TRIP", "The PLC stops the machine and its drives go off. Mode FAULT until acknowledged."],
    ["STOP", "STOP", "The controller stops the motion and holds. A new request may follow."],
    ["WARN", "WARNING", "Told only; nothing stops."],
  ];
  return {
    element: el(
      "div",
      { class: "columns help" },
      el(
        "section",
        { class: "panel", "aria-label": "Keys" },
        el("h2", {}, "Keys"),
        table(
          ["key", "does"],
          [
            [
              "Esc",
              "STOP, on every view, while typing, too: stops inside the limits and holds. " +
                "It is never asked twice, and it closes an open form.",
            ],
            [`1 … ${names.length}`, names.join(", ")],
            ["A", "acknowledges the alarms"],
            ["?", "this help"],
            [
              "Tab, Enter, Space",
              "go from one part to the next, press a button; Enter in a form of a request is Cancel",
            ],
            ["arrows, +, −", "in the 3-D view turn the camera and come nearer or go away"],
          ],
        ),
      ),
      el(
        "section",
        { class: "panel", "aria-label": "Alarms" },
        el("h2", {}, "Alarms"),
        table(
          ["", "word", "what it did"],
          alarms.map(([effect, word, does]) => [symbol(effect), word, does]),
        ),
        el(
          "p",
          {},
          "What nobody has acknowledged stands on top, the oldest first, and blinks slowly. An alarm goes when it has " +
            "been acknowledged and its cause is gone. In mode FAULT acknowledging also asks the controller to leave " +
            "FAULT; then ready switches the drives on.",
        ),
      ),
      el(
        "section",
        { class: "panel", "aria-label": "Numbers" },
        el("h2", {}, "Numbers"),
        el(
          "p",
          {},
          "Grey is normal. Colour is for what is not, always together with a shape and a word. Each part tells the age " +
            "of what it shows. After 0.5 s without new data numbers are hatched and marked STALE, after 2 s they give " +
            "way to “no data”. “no value” stands where the machine itself has none.",
        ),
        el("p", {}, "The page shows mm, degrees and bar. Files (CSV, recordings) are in SI units: m, rad, Pa."),
        el(
          "p",
          {},
          "STOP on this page is a controlled stop over the network. It is no emergency stop and replaces none.",
        ),
      ),
    ),
    draw() {},
  };
}
