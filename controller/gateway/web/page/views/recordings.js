// The recordings: what there is, a note to each, and the files.

import { ApiError, api } from "../api.js";
import { el, heads, text } from "../dom.js";
import { date, duration, size } from "../format.js";
import { mayAsk } from "../requests.js";

const EVERY_S = 5;

/** @param {import("../main.js").Page} page */
export function recordings(page) {
  const body = el("tbody", {});
  const said = el("p", { class: "quiet", "aria-live": "polite" });
  const mayWrite = mayAsk(page.session.role, "operator");
  let asked_s = -Infinity,
    told = "";

  async function look() {
    try {
      const found = await api("GET", "/api/recordings");
      const now = JSON.stringify(found);
      if (now === told || body.contains(document.activeElement)) return; // nobody loses what he is typing
      told = now;
      body.replaceChildren(...found.map(line));
      text(said, found.length ? "" : "There are no recordings.");
    } catch (error) {
      text(said, error instanceof ApiError ? error.message : String(error));
    }
  }

  /**
   * @param {{name: string, bytes: number, started_unix_s: number, duration_s: number | null, rows: number | null,
   *   running: boolean, finished: boolean, note: string, kind: string}} one
   */
  function line({ name, bytes, started_unix_s, duration_s, rows, running, finished, note, kind }) {
    const address = `/api/recordings/${encodeURIComponent(name)}`;
    const input = /** @type {HTMLInputElement} */ (
      el("input", {
        type: "text",
        maxlength: 2000,
        value: note,
        "aria-label": `note to ${name}`,
        placeholder: "no note",
        disabled: !mayWrite,
        title: mayWrite ? null : "A note needs the role operator.",
      })
    );
    input.addEventListener("change", async () => {
      try {
        await api("PUT", `${address}/note`, { note: input.value });
        text(said, `The note to ${name} is kept.`);
      } catch (error) {
        text(said, `The note to ${name} is not kept: ${error instanceof Error ? error.message : error}`);
      }
    });
    return el(
      "tr",
      { "data-name": name },
      el("td", {}, date(started_unix_s)),
      el("td", {}, kind === "flight" ? "fault" : "run"),
      el("td", {}, running ? "running" : finished ? "whole" : "broken off"),
      el("td", { class: "number" }, duration(duration_s)),
      el("td", { class: "number" }, rows === null ? "unknown" : String(rows)),
      el("td", { class: "number" }, size(bytes)),
      el("td", { class: "note" }, input),
      el("td", {}, el("a", { href: address, download: name, class: "button small" }, "Download")),
    );
  }

  return {
    element: el(
      "div",
      { class: "recordings" },
      el(
        "div",
        { class: "scroll" },
        el("table", {}, heads(["started", "kind", "state", "duration", "rows", "size", "note", "MCAP file"]), body),
      ),
      said,
    ),
    /** @param {import("../main.js").Moment} moment */
    draw({ now_s }) {
      if (now_s - asked_s < EVERY_S) return;
      asked_s = now_s;
      look();
    },
  };
}
