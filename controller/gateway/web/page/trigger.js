// The scope's trigger, on rows by their index. Pure.

/**
 * @typedef {"rising" | "falling" | "either"} Edge
 * @typedef {"single" | "normal" | "auto"} TriggerMode
 * @typedef {{from: number, to: number, at: number, forced: boolean}} Capture
 *   rows from … to - 1; `at` is the row of the trigger, or the newest where it was forced
 */

/**
 * The first row in from … to - 1 whose value has passed the level since the row before; -1 if none has.
 * A row without a value is no edge, nor is the row after it.
 * @param {(row: number) => number} value @param {number} from @param {number} to
 * @param {Edge} edge @param {number} level
 */
export function findTrigger(value, from, to, edge, level) {
  let before = value(from - 1);
  for (let row = from; row < to; row++) {
    const now = value(row);
    if (edge !== "falling" && before < level && now >= level) return row;
    if (edge !== "rising" && before > level && now <= level) return row;
    before = now;
  }
  return -1;
}

/**
 * A trigger that is fed with the growing number of rows and hands out captures.
 * @param {{edge: Edge, level: number, mode: TriggerMode, width: number, before: number}} how
 *   width in rows, `before` of them ahead of the trigger
 * @param {number} armed  the row from which edges count
 */
export function createTrigger(how, armed) {
  let from = armed,
    at = -1,
    waiting = armed,
    done = false;
  return {
    /** @returns {"armed" | "triggered" | "done"} */
    get phase() {
      return done ? "done" : at >= 0 ? "triggered" : "armed";
    },
    /**
     * The next capture, null while there is none.
     * @param {(row: number) => number} value @param {number} first  oldest row held @param {number} next  row to come
     * @returns {Capture | null}
     */
    take(value, first, next) {
      if (done) return null;
      if (at < 0) {
        from = Math.max(from, first + 1);
        at = findTrigger(value, from, next, how.edge, how.level);
        if (at < 0) from = Math.max(from, next);
      }
      if (at >= 0) {
        const end = at - how.before + how.width;
        if (next < end) return null;
        const capture = { from: Math.max(first, at - how.before), to: end, at, forced: false };
        done = how.mode === "single";
        from = waiting = Math.max(end, at + 1);
        at = -1;
        return capture;
      }
      if (how.mode === "auto" && next - waiting >= how.width) {
        waiting = next;
        return { from: Math.max(first, next - how.width), to: next, at: next - 1, forced: true };
      }
      return null;
    },
  };
}
