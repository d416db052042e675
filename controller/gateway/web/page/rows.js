// The newest rows of the run, a column a channel, in a ring of fixed size. No document, no network.

/**
 * @typedef {object} Rows
 * @property {string[]} names  of the columns
 * @property {(name: string) => number} column  its index, -1 where there is none
 * @property {(at: number, values: Float64Array) => void} append  whole rows; `at` is the index of the first
 * @property {(row: number, column: number) => number} value  NaN for a row or column that is not there
 * @property {(name: string) => number} newest  value of a channel in the newest row
 * @property {number} first  index of the oldest row held
 * @property {number} next  index of the row that comes next
 * @property {number} missing  rows that never came
 */

const MOST_BYTES = 96e6;

/**
 * @param {string[]} names @param {number} rate_hz @param {number} keep_s  how much is kept, less where that is too much
 * @returns {Rows}
 */
export function createRows(names, rate_hz, keep_s) {
  const columns = names.length;
  const capacity = Math.max(2, Math.floor(Math.min(keep_s * rate_hz, MOST_BYTES / 8 / columns)));
  const data = new Float64Array(capacity * columns);
  const places = new Map(names.map((name, k) => [name, k]));
  const time = places.get("t_s") ?? -1;

  /**
   * Rows that never came: no values, but times in between, so that a gap has its width.
   * @param {number} until
   * @param {number} t_s
   */
  function skip(until, t_s) {
    const before = rows.next,
      last_s = rows.value(before - 1, time);
    rows.missing += until - before;
    for (let row = Math.max(before, until - capacity); row < until; row++) {
      const at = (row % capacity) * columns;
      data.fill(NaN, at, at + columns);
      if (time >= 0) data[at + time] = last_s + ((row - before + 1) * (t_s - last_s)) / (until - before + 1);
    }
    rows.next = until;
  }

  /** @type {Rows} */
  const rows = {
    names,
    first: 0,
    next: 0,
    missing: 0,
    column: (name) => places.get(name) ?? -1,
    append(at, values) {
      const count = values.length / columns;
      if (rows.next === 0) rows.first = rows.next = at;
      if (at > rows.next) skip(at, time < 0 ? NaN : values[time]);
      for (let k = Math.max(0, rows.next - at, count - capacity); k < count; k++) {
        data.set(values.subarray(k * columns, (k + 1) * columns), ((at + k) % capacity) * columns);
        rows.next = at + k + 1;
      }
      rows.first = Math.max(rows.first, rows.next - capacity);
    },
    value(row, column) {
      if (row < rows.first || row >= rows.next || column < 0) return NaN;
      return data[(row % capacity) * columns + column];
    },
    newest: (name) => rows.value(rows.next - 1, places.get(name) ?? -1),
  };
  return rows;
}

/**
 * How old the newest row is. The row's time and the browser's clock share no zero: the smallest difference seen so far
 * is taken for the way from machine to page, and may grow slowly, because no two clocks run alike.
 * `silent` is what the gateway says of itself: that long it has had no row.
 * @returns {{note: (t_s: number, now_s: number) => void, silent: (for_s: number, now_s: number) => void,
 *   age_s: (now_s: number) => number}}
 */
export function createAge() {
  const DRIFT = 1e-4; // s/s
  let offset_s = Infinity,
    newest_s = NaN,
    noted_s = 0;
  return {
    note(t_s, now_s) {
      if (!Number.isFinite(t_s)) return;
      offset_s = Math.min(offset_s + DRIFT * (now_s - noted_s), now_s - t_s);
      newest_s = t_s;
      noted_s = now_s;
    },
    silent(for_s, now_s) {
      offset_s = Math.min(offset_s, now_s - newest_s - for_s);
    },
    age_s: (now_s) => (Number.isFinite(newest_s) ? Math.max(0, now_s - offset_s - newest_s) : Infinity),
  };
}

export const STALE_S = 0.5;
export const NO_DATA_S = 2.0;

/** What data of this age are worth. @param {number} age_s @returns {"live" | "stale" | "none"} */
export function worth(age_s) {
  return age_s < STALE_S ? "live" : age_s < NO_DATA_S ? "stale" : "none";
}
