// What the operator may ask for: who may, what it needs, and the way to the controller and back.

import { ApiError, api, freshId, serverTime_s } from "./api.js";

export const ROLES = ["viewer", "operator", "engineer"];
const PATIENCE_S = 2.5; // for an answer
const PREVIEW_S = 20; // the first one waits until the server has loaded what plans it
const VALID_S = 4; // a request that arrives later is refused

/**
 * @typedef {{kind: string, role: string, moves: boolean}} Ask  one of meta.requests
 * @typedef {{pose?: Record<string, number>, speed_share?: number, frequency_hz?: number, track?: string}} Numbers
 * @typedef {{good: boolean, text: string}} Said
 */

/** Words of each request: on its button, and what it does. @type {Record<string, [string, string]>} */
export const WORDS = {
  ready: ["Ready", "switch the drives on and hold the position"],
  off: ["Off", "stop, then switch the drives off"],
  move: ["Move …", "move to a pose"],
  sine: ["Sine …", "swing about the present pose until stopped"],
  track: ["Track …", "follow a track of the site"],
  stream: ["Stream", "follow the poses of the motion-base host"],
  home: ["Home", "let the drives look for their references"],
  tare: ["Tare", "make the load cells read what the model says of this pose"],
  acknowledge: ["Acknowledge", "clear a latched fault whose cause is gone"],
  stop: ["STOP", "stop inside the limits, then hold"],
};

/** @param {string} role @param {string} least */
export function mayAsk(role, least) {
  return ROLES.indexOf(role) >= ROLES.indexOf(least);
}

/** The body of a request or a preview. @param {string} kind @param {Numbers} numbers */
function body(kind, numbers) {
  return { id: freshId(), kind, deadline_t: serverTime_s() + VALID_S, ...numbers };
}

/** Ask, and say in words what came of it. @param {string} kind @param {Numbers} [numbers] @returns {Promise<Said>} */
export async function request(kind, numbers = {}) {
  const name = kind.toUpperCase();
  try {
    const answer = await api("POST", "/api/request", body(kind, numbers), PATIENCE_S);
    const good = answer.verdict === "ACCEPTED";
    return { good, text: `${name} ${good ? "is accepted" : `is refused: ${answer.text}`}` };
  } catch (error) {
    const why = error instanceof ApiError ? error.message : String(error);
    const alarming = kind === "stop" ? "STOP IS NOT CONFIRMED: use the emergency stop. " : `${name} is not confirmed: `;
    return { good: false, text: alarming + why };
  }
}

/**
 * What would come of it.
 * @param {string} kind
 * @param {Numbers} numbers
 * @returns {Promise<{text: string, seconds: number | null, verdict: string}>}
 */
export function preview(kind, numbers) {
  return api("POST", "/api/preview", body(kind, numbers), PREVIEW_S);
}
