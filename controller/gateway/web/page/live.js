// The WebSocket with rows, events and state: decodes, and connects again with growing pauses.

const PAUSE_S = [0.5, 8]; // before connecting again: first, longest
const SILENT_S = 10; // the state comes once a second: a connection that says nothing for so long is given up
const HISTORY_S = 60;

/**
 * @typedef {object} Heard  what to do with what comes
 * @property {(hello: {session: string, columns: string[], first: number}) => void} hello
 * @property {(first: number, rows: Float64Array) => void} rows
 * @property {(message: any) => void} message  of type event, state, dropped or ended
 * @property {(open: boolean) => void} link
 */

/**
 * Keep listening until `close`.
 * @param {Heard} heard @param {() => number} sinceLast_s  how long ago the newest row came, infinite before the first
 * @returns {{close: () => void}}
 */
export function listen(heard, sinceLast_s) {
  let closed = false,
    pause_s = PAUSE_S[0],
    timer = 0,
    watch = 0;
  /** @type {WebSocket | null} */
  let socket = null;

  function connect() {
    const history_s = Math.min(HISTORY_S, Math.ceil(sinceLast_s() + 1));
    const mine = new WebSocket(`${location.origin.replace(/^http/, "ws")}/api/live?history_s=${history_s}`);
    mine.binaryType = "arraybuffer";
    socket = mine;
    awaitWord();
    mine.onopen = () => heard.link(true);
    mine.onmessage = ({ data }) => {
      if (mine !== socket) return;
      awaitWord();
      pause_s = PAUSE_S[0];
      if (data instanceof ArrayBuffer) {
        const numbers = new Float64Array(data);
        heard.rows(numbers[0], numbers.subarray(1));
        return;
      }
      const message = JSON.parse(data);
      if (message.type === "hello") heard.hello(message);
      else heard.message(message);
    };
    mine.onclose = () => mine === socket && again();
  }

  function awaitWord() {
    clearTimeout(watch);
    watch = setTimeout(again, 1e3 * SILENT_S);
  }

  function again() {
    const old = socket;
    socket = null;
    clearTimeout(watch);
    old?.close();
    if (closed) return;
    const wait_s = pause_s * (0.8 + 0.4 * Math.random()); // many pages must not come back in the same moment
    pause_s = Math.min(2 * pause_s, PAUSE_S[1]);
    heard.link(false);
    clearTimeout(timer);
    timer = setTimeout(connect, 1e3 * wait_s);
  }

  connect();
  return {
    close() {
      closed = true;
      clearTimeout(timer);
      again();
    },
  };
}
