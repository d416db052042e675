// The login form.

import { ApiError, login } from "./api.js";
import { el, text } from "./dom.js";

/** @param {string} why  it is asked for, empty at first @param {() => void} done */
export function loginForm(why, done) {
  const user = /** @type {HTMLInputElement} */ (
    el("input", {
      type: "text",
      name: "user",
      autocomplete: "username",
      required: true,
      autocapitalize: "none",
      autofocus: true,
    })
  );
  const password = /** @type {HTMLInputElement} */ (
    el("input", { type: "password", name: "password", autocomplete: "current-password", required: true })
  );
  const said = el("p", { class: "said", role: "alert" }, why);
  const button = /** @type {HTMLButtonElement} */ (el("button", { type: "submit", class: "go" }, "Log in"));
  const form = el(
    "form",
    { class: "login", "aria-label": "Log in" },
    el("h1", {}, "pkm"),
    el("p", { class: "quiet" }, "Parallel robot, operator page"),
    el("label", { class: "field" }, el("span", { class: "name" }, "user"), user),
    el("label", { class: "field" }, el("span", { class: "name" }, "password"), password),
    said,
    button,
    el(
      "p",
      { class: "quiet" },
      "Without a password: the link that the command pkm link prints on the controller's computer.",
    ),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await login({ user: user.value, password: password.value });
      done();
    } catch (error) {
      text(said, error instanceof ApiError ? error.message : String(error));
      password.value = "";
    }
    button.disabled = false;
  });
  return form;
}
