// The operator page: log in, learn what the machine is, listen, draw.

import { ApiError, api, logout, resume } from "./api.js";
import { createAlarms } from "./alarms.js";
import { createBanner } from "./banner.js";
import { attribute, el, text } from "./dom.js";
import { age, date, duration } from "./format.js";
import { bindKeys } from "./keyboard.js";
import { listen } from "./live.js";
import { loginForm } from "./login.js";
import { machineOf } from "./machine.js";
import { createAnswer, createOperate } from "./operate.js";
import { request } from "./requests.js";
import { createAge, createRows, worth } from "./rows.js";
import { eventsView } from "./views/events.js";
import { health } from "./views/health.js";
import { help } from "./views/help.js";
import { machine3d } from "./views/machine3d.js";
import { overview } from "./views/overview.js";
import { recordings } from "./views/recordings.js";
import { scope } from "./views/scope.js";
import { trends } from "./views/trends.js";
import { flag } from "./widgets.js";

const PICTURE_S = 1 / 30; // at most
const KEEP_S = 120; // rows
const EVENTS = 500;
const RETRY_S = 2;
const SILENT_S = 1; // without a row, and the gateway says that control is not online
const WITH_REQUESTS = ["Overview", "3-D", "Trends"]; // views that leave room for the requests at their side

/**
 * @typedef {object} Page  what views may ask
 * @property {import("./api.js").Session} session
 * @property {import("./machine.js").Machine} machine
 * @property {import("./rows.js").Rows} rows
 * @property {(name: string) => number} value  of a channel in the newest row, SI; NaN where there is none
 * @property {(name: string) => () => number} reader  the same, looked up once
 * @property {() => any} status  the last state message of the gateway
 * @property {() => boolean} online
 * @property {() => import("./alarms.js").Event[]} events  oldest first
 * @property {() => string} whyNotAcknowledge  empty where this user may
 * @property {() => number} drawing_s  how long the last picture took
 * @typedef {{now_s: number, age_s: number, worth: "live" | "stale" | "none"}} Moment  when a view is drawn
 * @typedef {{element: HTMLElement, draw: (moment: Moment) => void}} View
 */

const root = /** @type {HTMLElement} */ (document.getElementById("page"));
const now_s = () => performance.now() / 1e3;
const pause = (/** @type {number} */ seconds) => new Promise((done) => setTimeout(done, 1e3 * seconds));

/**
 * Until the server answers, one try after the other.
 * @template T
 * @param {() => Promise<T>} ask
 * @param {string} what
 * @returns {Promise<T>}
 */
async function patiently(ask, what) {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (error instanceof ApiError && error.status > 0 && error.status !== 503) throw error;
      root.replaceChildren(
        el("p", { class: "waiting", role: "status" }, `${what} ${error instanceof Error ? error.message : error}`),
      );
      await pause(RETRY_S);
    }
  }
}

async function begin() {
  let session = null;
  try {
    session = await patiently(resume, "");
  } catch (error) {
    return askAgain(error instanceof Error ? error.message : String(error));
  }
  if (session === null) return askAgain("");
  try {
    const meta = await patiently(() => api("GET", "/api/meta"), "Waiting for the controller.");
    run(session, meta);
  } catch (error) {
    askAgain(error instanceof Error ? error.message : String(error));
  }
}

/** @param {string} why */
function askAgain(why) {
  root.replaceChildren(loginForm(why, begin));
}

/**
 * One run of the controller on this page, until the next session or the end of the login.
 * @param {import("./api.js").Session} session
 * @param {any} meta
 */
function run(session, meta) {
  const machine = machineOf(meta),
    alarms = createAlarms(meta.faults);
  const names = meta.channels.map((/** @type {any} */ channel) => channel.name);
  const rows = createRows(names, meta.rate_hz, KEEP_S),
    data = createAge();
  /** @type {import("./alarms.js").Event[]} */
  let events = [];
  /** @type {any} */
  let status = {};
  let ended = "",
    linked = false,
    over = false,
    caughtUp = false,
    stood = false,
    drawing_s = 0;

  /** @param {string} name */
  const reader = (name) => {
    const column = rows.column(name);
    return () => rows.value(rows.next - 1, column);
  };
  /** @type {Page} */
  const page = {
    session,
    machine,
    rows,
    reader,
    value: rows.newest,
    status: () => status,
    online: () => linked && status.online === true && worth(data.age_s(now_s())) !== "none",
    events: () => events,
    whyNotAcknowledge: () => operate.whyNot("acknowledge"),
    drawing_s: () => drawing_s,
  };

  // ---------------------------------------------------------------- requests

  const answer = createAnswer();
  const operate = createOperate(page, answer.say);
  async function stop() {
    operate.close();
    if (!operate.mayAsk("stop")) {
      answer.say({
        good: false,
        text: `STOP is not possible: it needs another role; ${session.user} is ${session.role}.`,
      });
      return;
    }
    answer.say({ good: true, text: "STOP is sent …" });
    answer.say(await request("stop"));
  }

  /** Alarms are seen; a latched fault is cleared too. */
  async function acknowledge() {
    const why = page.whyNotAcknowledge();
    if (why) {
      answer.say({ good: false, text: why });
      return;
    }
    const latched = meta.modes[page.value("mode")] === "FAULT";
    if (latched) {
      const said = await request("acknowledge");
      answer.say(said);
      if (!said.good) return;
    }
    const unseen = alarms
      .list()
      .filter(({ seen }) => !seen)
      .map(({ name }) => name);
    if (!unseen.length) return;
    try {
      await api("POST", "/api/acknowledge", { alarms: unseen });
    } catch (error) {
      if (!latched) answer.say({ good: false, text: error instanceof Error ? error.message : String(error) });
    }
  }

  // ---------------------------------------------------------------- the page

  /** @type {[string, View][]} */
  const views = [
    ["Overview", overview(page)],
    ["3-D", machine3d(page)],
    ["Trends", trends(page)],
    ["Scope", scope(page)],
    ["Events", eventsView(page, acknowledge)],
    ["Recordings", recordings(page)],
    ["Health", health(page)],
  ];
  views.push(["Help", help([...views.map(([name]) => name), "Help"])]);
  let shown = 0;
  const tabs = views.map(([name], k) =>
    el(
      "button",
      { type: "button", role: "tab", id: `tab-${k}`, "aria-controls": "view", onclick: () => show(k) },
      name,
    ),
  );
  const place = el("div", { id: "view", role: "tabpanel", tabindex: -1 });
  const body = el("div", { class: "body" }, place, operate.element, operate.place);

  /** @param {number} k */
  function show(k) {
    if (!views[k]) return;
    shown = k;
    tabs.forEach((tab, i) => attribute(tab, "aria-selected", String(i === k)));
    attribute(place, "aria-labelledby", `tab-${k}`);
    body.dataset.view = views[k][0];
    body.dataset.requests = String(WITH_REQUESTS.includes(views[k][0]));
    place.replaceChildren(views[k][1].element);
    place.scrollTop = 0;
  }

  const header = createHeader(page, stop, leave);
  const banner = createBanner(alarms.list, () => alarms.last, acknowledge, page.whyNotAcknowledge);
  root.replaceChildren(
    header.element,
    banner.element,
    el("nav", { role: "tablist", "aria-label": "views" }, ...tabs, answer.element),
    body,
  );
  show(0);
  const unbind = bindKeys({
    stop,
    acknowledge,
    view: (number) => show(number - 1),
    help: () => show(views.length - 1),
  });

  // ---------------------------------------------------------------- what comes

  const key = (/** @type {import("./alarms.js").Event} */ { t, kind, code, text: words }) =>
    `${t} ${kind} ${code} ${words}`;
  let told = new Set();

  /** @param {import("./alarms.js").Event} event */
  function take(event) {
    if (told.has(key(event))) return;
    told.add(key(event));
    events.push(event);
    alarms.take(event);
    if (events.length > EVENTS) for (const old of events.splice(0, events.length - EVENTS)) told.delete(key(old));
  }

  /** The events of the past, then those that came while they were asked for. */
  async function catchUp() {
    try {
      const past = await api("GET", `/api/events?limit=${EVENTS}`),
        meanwhile = events;
      events = [];
      told = new Set();
      alarms.forget();
      for (const event of [...past, ...meanwhile].sort((a, b) => a.t - b.t)) take(event);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) finish("The login has ended.");
    }
    caughtUp = true;
    stood = false;
  }

  const live = listen(
    {
      hello(hello) {
        if (hello.session !== meta.session || hello.columns.join() !== names.join()) restart();
        else catchUp();
      },
      rows(first, values) {
        rows.append(first, values);
        data.note(rows.newest("t_s"), now_s());
      },
      message(message) {
        if (message.type === "event") take(message.event);
        else if (message.type === "state") {
          status = message;
          if (message.online === false) data.silent(SILENT_S, now_s());
        } else if (message.type === "ended") ended = message.cause; // rows that were dropped are missing by their index
      },
      link(open) {
        linked = open;
        // a refused WebSocket does not say why: the session may have ended
        if (!open) api("GET", "/api/session").catch((error) => error.status === 401 && finish("The login has ended."));
      },
    },
    () => data.age_s(now_s()),
  );

  function shut() {
    over = true;
    live.close();
    unbind();
  }

  /** @param {string} why */
  function finish(why) {
    if (over) return;
    shut();
    askAgain(why);
  }

  function restart() {
    if (over) return;
    shut();
    begin();
  }

  async function leave() {
    shut();
    await logout();
    askAgain("You are logged out.");
  }

  // ---------------------------------------------------------------- drawing

  let drawn_s = -Infinity;
  function picture() {
    if (over) return;
    requestAnimationFrame(picture);
    const now = now_s();
    if (now - drawn_s < PICTURE_S - 0.002) return;
    drawn_s = now;
    const age_s = data.age_s(now);
    const moment = { now_s: now, age_s, worth: worth(age_s) };
    attribute(document.body, "data-worth", moment.worth);
    if (caughtUp && moment.worth !== "none") {
      alarms.stand(page.value("faults"), stood ? meta.started_unix_s + page.value("t_s") : NaN);
      stood = true;
    }
    header.draw(moment, { linked, ended, cause: status.cause });
    banner.draw();
    operate.draw();
    views[shown][1].draw(moment);
    drawing_s = now_s() - now;
  }
  requestAnimationFrame(picture);
}

/**
 * Site, connection, mode, what is under way, recording, user, STOP: on every view.
 * @param {Page} page @param {() => void} stop @param {() => void} leave
 */
function createHeader(page, stop, leave) {
  const { machine, session } = page,
    { meta } = machine;
  const link = flag(),
    recording = flag(),
    mode = flag();
  const under = el("span", { class: "under-way" }),
    since = el("span", { class: "quiet" });
  const element = el(
    "header",
    {},
    el(
      "div",
      { class: "what" },
      el("strong", {}, meta.site),
      el("span", { class: "quiet" }, meta.title || meta.machine || ""),
    ),
    el("div", { class: "chip-box", role: "status", "aria-label": "connection" }, link.element),
    el(
      "div",
      { class: "mode", role: "status", "aria-label": "mode" },
      mode.element,
      el("span", { class: "mode-more" }, under, since),
    ),
    el("div", { class: "chip-box" }, recording.element),
    el(
      "div",
      { class: "who" },
      el("span", {}, session.user),
      el("span", { class: "quiet" }, session.role),
      el("button", { type: "button", class: "small", onclick: leave }, "Log out"),
    ),
    el(
      "button",
      { type: "button", class: "stop-button", onclick: stop, title: "Esc", "aria-keyshortcuts": "Escape" },
      stopSign(),
      el("span", {}, "STOP"),
      el("kbd", {}, "Esc"),
    ),
  );
  return {
    element,
    /** @param {Moment} moment @param {{linked: boolean, ended: string, cause: string | null}} how */
    draw({ age_s, worth: is }, { linked, ended, cause }) {
      if (is === "none") {
        const why = ended || (linked ? cause || "no rows come" : "no connection, tries again");
        link.draw(`NO DATA${Number.isFinite(age_s) ? ` for ${age(age_s)}` : ""}: ${why}`, "TRIP");
      } else if (is === "stale") link.draw(`STALE: ${age(age_s)} old`, "WARN");
      else link.draw(`live, ${age(age_s)}`, null);
      const word = meta.modes[page.value("mode")] ?? "no value",
        known = is !== "none";
      mode.draw(known ? word : "no data", known && word === "FAULT" ? "TRIP" : null);
      element.dataset.mode = known ? word : "none";
      const left_s = page.value("left_s");
      text(
        under,
        known && left_s > 0
          ? `${left_s.toFixed(1)} s left`
          : known && page.value("drives_enabled")
            ? "drives on"
            : known
              ? "drives off"
              : "",
      );
      const from = page.status().since;
      text(since, known && from ? `since ${date(from).slice(11)}` : "");
      const file = page.status().recording;
      recording.draw(file ? `recording ${duration(page.value("t_s"))}` : "NOT RECORDING", file ? null : "WARN");
    },
  };
}

function stopSign() {
  const sign = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  sign.setAttribute("viewBox", "0 0 24 24");
  sign.setAttribute("class", "stop-sign");
  sign.setAttribute("aria-hidden", "true");
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
  shape.setAttribute("points", "7,0 17,0 24,7 24,17 17,24 7,24 0,17 0,7");
  sign.append(shape);
  return sign;
}

begin();
