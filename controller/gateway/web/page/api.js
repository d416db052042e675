// Talking to the server over HTTP: one function for all routes, the server's clock, login.

/**
 * @typedef {{user: string, role: string, expires_s: number}} Session
 */

export class ApiError extends Error {
  /** @param {number} status  0 where there was no answer @param {string} sentence */
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

const KNOWN = "pkm-logged-in"; // in the browser's memory: without it there is no session to ask for
let serverAhead_s = 0; // the clock of a tablet may be wrong

/** Unix time of the server, to half a second. */
export function serverTime_s() {
  return Date.now() / 1e3 + serverAhead_s;
}

/**
 * Ask the server; its JSON, or an ApiError with one plain sentence.
 * @param {string} method @param {string} path @param {object} [body] @param {number} [patience_s]
 * @returns {Promise<any>}
 */
export async function api(method, path, body, patience_s = 10) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      headers: body ? { "Content-Type": "application/json" } : {},
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(1e3 * patience_s),
    });
  } catch {
    throw new ApiError(0, "The server does not answer.");
  }
  const told = Date.parse(answer.headers.get("Date") ?? "");
  if (Number.isFinite(told)) serverAhead_s = told / 1e3 + 0.5 - Date.now() / 1e3;
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(answer.status, found.error ?? `The server answered ${answer.status}.`);
  return found;
}

/**
 * The session of this browser: the one it has, or one for the token in the address, which is removed at once.
 * @returns {Promise<Session | null>}  null where somebody has to log in
 */
export async function resume() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname + location.search);
    return login({ token });
  }
  if (!localStorage.getItem(KNOWN)) return null;
  try {
    return await api("GET", "/api/session");
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) throw error;
    localStorage.removeItem(KNOWN);
    return null;
  }
}

/** @param {{user: string, password: string} | {token: string}} who @returns {Promise<Session>} */
export async function login(who) {
  const session = await api("POST", "/api/login", who, 60); // wrong passwords make the next try wait
  localStorage.setItem(KNOWN, "yes");
  return session;
}

export async function logout() {
  localStorage.removeItem(KNOWN);
  await api("POST", "/api/logout", {}).catch(() => {});
}

/** Characters for the id of a request; randomUUID exists on https pages only. */
export function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
