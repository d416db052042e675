// The operator's side: a button for each request, the form with its preview, and the answer in words.

import { attribute, el, text } from "./dom.js";
import { number, parse, shown } from "./format.js";
import { WORDS, mayAsk, preview, request } from "./requests.js";

const AT_ONCE = ["off", "acknowledge"]; // what makes the machine safer, or only clears, is not asked twice
const TYPING_MS = 350; // after the last key, before the preview is asked for
const AGAIN_MS = 1500; // while the preview says no
const SHOWN_ANSWER_MS = 15_000;

/**
 * @param {import("./main.js").Page} page
 * @param {(said: import("./requests.js").Said) => void} say
 */
export function createOperate(page, say) {
  const { machine, session } = page;
  /** @type {import("./requests.js").Ask[]} */
  const known = Object.keys(WORDS).map((kind) =>
    machine.meta.requests.find((/** @type {any} */ ask) => ask.kind === kind),
  );
  const asks = known.filter((ask) => ask && ask.kind !== "stop");
  const buttons = asks
    .filter(
      ({ kind }) =>
        (kind !== "track" || machine.meta.tracks.length > 0) && (kind !== "stream" || machine.has("stream_seq")),
    )
    .map((ask) => {
      const [word, does] = WORDS[ask.kind];
      const button = el(
        "button",
        { type: "button", class: "ask", "data-kind": ask.kind, title: does, onclick: () => open(ask) },
        word,
      );
      return { ask, button };
    });
  const reason = el("p", { class: "quiet", id: "why-not" });
  const place = el("div", { class: "form-place" });
  const element = el(
    "aside",
    { class: "operate", "aria-label": "Requests" },
    el("h2", {}, "Requests"),
    el("div", { class: "asks" }, ...buttons.map(({ button }) => button)),
    reason,
  );

  /** Why this user cannot ask now; empty when he can. @param {import("./requests.js").Ask} ask */
  function whyNot(ask) {
    if (!mayAsk(session.role, ask.role))
      return `${ask.kind} needs the role ${ask.role}; ${session.user} is ${session.role}.`;
    if (!page.online()) return "The controller is not online.";
    return "";
  }

  /** @param {import("./requests.js").Ask} ask */
  async function open(ask) {
    close();
    if (AT_ONCE.includes(ask.kind)) say(await request(ask.kind));
    else confirm(ask);
  }

  function close() {
    place.replaceChildren();
  }

  /**
   * The form of a request: its numbers, what would come of it, Cancel first.
   * @param {import("./requests.js").Ask} ask
   */
  function confirm(ask) {
    const { kind } = ask;
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    const fields = FIELDS[kind]?.(page) ?? { element: null, numbers: () => ({}) };
    const consequence = el("p", { class: "consequence", "aria-live": "polite" }, "asking what would happen …");
    const go = /** @type {HTMLButtonElement} */ (
      el("button", { type: "button", class: "go", disabled: true }, WORDS[kind][0].replace(" …", ""))
    );
    // the first submit button is what Enter presses, in every field
    const cancel = el("button", { type: "submit", class: "cancel" }, "Cancel");
    let timer = 0,
      round = 0;
    const dialog = el(
      "form",
      {
        class: "dialog",
        role: "dialog",
        "aria-label": `${kind}: are you sure?`,
        "data-kind": kind,
        novalidate: true,
        autocomplete: "off",
      },
      el("h2", {}, WORDS[kind][0].replace(" …", "")),
      el("p", { class: "quiet" }, `${WORDS[kind][1]}.`),
      fields.element,
      consequence,
      el("div", { class: "dialog-buttons" }, cancel, go),
    );

    async function look() {
      const mine = ++round;
      go.disabled = true;
      const numbers = fields.numbers();
      if (numbers === null) {
        text(consequence, "One of the fields is no number.");
        return;
      }
      try {
        const found = await preview(kind, numbers);
        if (mine !== round) return;
        text(consequence, found.text);
        go.disabled = found.verdict !== "ACCEPTED";
      } catch (error) {
        if (mine === round) text(consequence, error instanceof Error ? error.message : String(error));
      }
      // what stands in the way may go by itself: drives that come on, a server that is busy
      if (mine === round && go.disabled) timer = setTimeout(look, AGAIN_MS);
    }

    function end() {
      clearTimeout(timer);
      round++;
      dialog.remove();
      before?.focus();
    }

    dialog.addEventListener("submit", (event) => {
      event.preventDefault();
      end();
    });
    dialog.addEventListener("input", () => {
      round++;
      go.disabled = true; // until it is known what the new numbers mean
      clearTimeout(timer);
      timer = setTimeout(look, TYPING_MS);
    });
    go.addEventListener("click", async () => {
      const numbers = fields.numbers();
      if (numbers === null) return;
      end();
      say(await request(kind, numbers));
    });
    place.replaceChildren(dialog);
    cancel.focus();
    look();
  }

  return {
    element,
    place,
    close,
    draw() {
      const reasons = buttons.map(({ ask, button }) => {
        const why = whyNot(ask);
        attribute(button, "disabled", why ? "" : null);
        attribute(button, "title", why || WORDS[ask.kind][1]);
        return why;
      });
      const all = reasons.length > 0 && reasons.every(Boolean);
      text(
        reason,
        all
          ? mayAsk(session.role, "operator")
            ? reasons[0]
            : `${session.user} is ${session.role} and may only look: requests need the role operator.`
          : (reasons.find(Boolean) ?? ""),
      );
    },
    /** Whether this user's role suffices, whatever else stands in the way. @param {string} kind */
    mayAsk: (kind) =>
      machine.meta.requests.some(
        (/** @type {import("./requests.js").Ask} */ one) => one.kind === kind && mayAsk(session.role, one.role),
      ),
    /** Why this request is not possible for this user. @param {string} kind */
    whyNot(kind) {
      const ask = machine.meta.requests.find((/** @type {import("./requests.js").Ask} */ one) => one.kind === kind);
      return ask ? whyNot(ask) : "The controller knows no such request.";
    },
  };
}

/**
 * A labelled input of a number in its shown unit.
 * @param {string} word
 * @param {string} unit
 * @param {number} value
 * @param {string} hint
 */
function field(word, unit, value, hint) {
  const input = /** @type {HTMLInputElement} */ (
    el("input", { type: "text", inputmode: "text", value: number(value, unit).replace("−", "-") })
  );
  return {
    element: el(
      "label",
      { class: "field" },
      el("span", { class: "name" }, word),
      input,
      el("span", { class: "unit" }, shown(unit).unit),
      el("span", { class: "quiet" }, hint),
    ),
    value: () => parse(input.value, unit),
    /** @param {number} si */
    set: (si) => {
      input.value = number(si, unit).replace("−", "-");
    },
  };
}

/** Speed as a share of the limits, as a slider that a finger can hold. @param {number} share */
function speedField(share) {
  const told = el("output", { class: "value" }, `${100 * share} %`);
  const input = /** @type {HTMLInputElement} */ (
    el("input", {
      type: "range",
      min: 5,
      max: 100,
      step: 5,
      value: 100 * share,
      "aria-label": "share of the speed limits, percent",
      oninput: () => text(told, `${input.value} %`),
    })
  );
  return {
    element: el("label", { class: "field speed" }, el("span", { class: "name" }, "speed"), input, told),
    value: () => Number(input.value) / 100,
  };
}

/** @typedef {{element: HTMLElement, numbers: () => import("./requests.js").Numbers | null}} Fields */

/** @type {Record<string, (page: import("./main.js").Page) => Fields>} */
const FIELDS = {
  move(page) {
    const coordinates = page.machine.coordinates;
    const start = coordinates.map(({ name }) => page.value(`reference_${name}`));
    const inputs = coordinates
      .filter(({ free }) => free)
      .map((one) => {
        const k = coordinates.indexOf(one);
        const hint = `${number(one.low, one.unit, 0)} … ${number(one.high, one.unit, 0)}`;
        return { one, k, ...field(one.word, one.unit, Number.isFinite(start[k]) ? start[k] : one.home, hint) };
      });
    const speed = speedField(0.3);
    const home = el(
      "button",
      {
        type: "button",
        class: "small",
        onclick: (/** @type {MouseEvent} */ { target }) => {
          for (const { one, set } of inputs) set(one.home);
          target?.dispatchEvent(new InputEvent("input", { bubbles: true }));
        },
      },
      "take the home pose",
    );
    return {
      element: el("div", { class: "fields" }, ...inputs.map(({ element }) => element), home, speed.element),
      numbers() {
        const pose = Object.fromEntries(
          coordinates.map(({ name, home: at }, k) => [name, Number.isFinite(start[k]) ? start[k] : at]),
        );
        for (const { one, value } of inputs) pose[one.name] = value();
        return Object.values(pose).every(Number.isFinite) ? { pose, speed_share: speed.value() } : null;
      },
    };
  },
  sine(page) {
    const inputs = page.machine.coordinates
      .filter(({ free }) => free)
      .map((one) => ({ one, ...field(one.word, one.unit, 0, "amplitude") }));
    const often = field("frequency", "Hz", 0.2, "up to 5 Hz");
    return {
      element: el("div", { class: "fields" }, ...inputs.map(({ element }) => element), often.element),
      numbers() {
        const pose = Object.fromEntries(inputs.map(({ one, value }) => [one.name, value()]));
        const frequency_hz = often.value();
        return [...Object.values(pose), frequency_hz].every(Number.isFinite) ? { pose, frequency_hz } : null;
      },
    };
  },
  track(page) {
    const choice = /** @type {HTMLSelectElement} */ (
      el(
        "select",
        {},
        ...page.machine.meta.tracks.map((/** @type {string} */ name) => el("option", { value: name }, name)),
      )
    );
    const speed = speedField(0.3);
    return {
      element: el(
        "div",
        { class: "fields" },
        el("label", { class: "field" }, el("span", { class: "name" }, "track"), choice),
        speed.element,
        el("p", { class: "quiet" }, "The speed is that of the way to the start of the track."),
      ),
      numbers: () => ({ track: choice.value, speed_share: speed.value() }),
    };
  },
};

/** The line that says what became of the last request. */
export function createAnswer() {
  const element = el("output", { class: "answer", "aria-live": "polite" });
  let timer = 0;
  return {
    element,
    /** @param {import("./requests.js").Said} said */
    say({ good, text: words }) {
      text(element, words);
      attribute(element, "data-good", String(good));
      clearTimeout(timer);
      if (good) timer = setTimeout(() => text(element, ""), SHOWN_ANSWER_MS);
    },
  };
}
