// Choosing channels: a search field over all of them, and the chosen ones with their colours.

import { el, text } from "./dom.js";
import { label } from "./format.js";
import { COLOURS } from "./plot.js";

export const MOST = 8;

/**
 * @param {import("./machine.js").Machine} machine @param {string[]} chosen  at first
 * @param {(chosen: string[]) => void} changed
 */
export function createPicker(machine, chosen, changed) {
  let names = chosen.filter(machine.has).slice(0, MOST);
  const search = /** @type {HTMLInputElement} */ (
    el("input", { type: "search", placeholder: "find a channel", "aria-label": "find a channel", oninput: list })
  );
  const found = el("ul", { class: "channels" });
  const list_ = el("details", { class: "picker" }, el("summary", {}, "Channels"), search, found);
  const chips = el("div", { class: "chips" });
  /** @param {PointerEvent} event */
  const outside = ({ target }) => {
    if (!(target instanceof Node && list_.contains(target))) list_.removeAttribute("open");
  };
  list_.addEventListener("toggle", () => {
    if (list_.hasAttribute("open")) document.addEventListener("pointerdown", outside);
    else document.removeEventListener("pointerdown", outside);
  });
  /** @type {Map<string, HTMLElement>} */
  const values = new Map();

  function list() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fitting = machine.channels.filter(({ name, meaning }) =>
      wanted.every((word) => name.toLowerCase().includes(word) || meaning.toLowerCase().includes(word)),
    );
    found.replaceChildren(
      ...fitting.map(({ name, unit, meaning }) => {
        const box = /** @type {HTMLInputElement} */ (
          el("input", { type: "checkbox", value: name, onchange: () => toggle(name) })
        );
        box.checked = names.includes(name);
        box.disabled = !box.checked && names.length >= MOST;
        return el(
          "li",
          {},
          el(
            "label",
            {},
            box,
            el("span", { class: "name" }, label(name, unit)),
            el("span", { class: "quiet" }, meaning.length > 90 ? `${meaning.slice(0, 90)} …` : meaning),
          ),
        );
      }),
    );
  }

  /** @param {string} name */
  function toggle(name) {
    names = names.includes(name) ? names.filter((one) => one !== name) : [...names, name].slice(0, MOST);
    show();
    list();
    changed(names);
  }

  function show() {
    values.clear();
    chips.replaceChildren(
      ...names.map((name, k) => {
        const value = el("span", { class: "value" });
        const dot = el("span", { class: "dot" });
        dot.style.background = COLOURS[k % COLOURS.length];
        values.set(name, value);
        return el(
          "button",
          { type: "button", class: "chip", title: `take ${name} away`, onclick: () => toggle(name) },
          dot,
          label(name, machine.unit(name)),
          " ",
          value,
          el("span", { "aria-hidden": "true" }, " ×"),
        );
      }),
    );
  }

  show();
  list();
  return {
    element: el("div", { class: "picking" }, list_, chips),
    names: () => names,
    /** Beside a channel's name. @param {string} name @param {string} value */
    tell(name, value) {
      const place = values.get(name);
      if (place) text(place, value);
    },
  };
}
