// Alarms made of events and of the faults that stand: what is abnormal, since when, and who has seen it. Pure.

/**
 * @typedef {{t: number, kind: string, code: string, text: string, values: Record<string, number | null>,
 *   who?: string}} Event
 * @typedef {{bit: number, name: string, meaning: string, effect: "TRIP" | "STOP" | "WARN"}} FaultRow
 * @typedef {{who: string, t: number}} Seen
 * @typedef {object} Alarm
 * @property {string} name @property {string} meaning @property {"TRIP" | "STOP" | "WARN"} effect
 * @property {number} since  Unix s of the first time it came unseen; NaN where this page does not know it
 * @property {boolean} stands  the fault is still there
 * @property {Seen | null} seen
 * @property {number} times  it came since it was seen last
 */

/** Most urgent first. */
export const EFFECTS = /** @type {const} */ (["TRIP", "STOP", "WARN"]);

/** The names in a set of bits. @param {number} bits @param {{bit: number, name: string}[]} table */
export function namesOf(bits, table) {
  if (!(bits > 0)) return [];
  return table.filter(({ bit }) => Math.floor(bits / 2 ** bit) % 2 === 1).map(({ name }) => name);
}

/** Whether an event says that the controller took an operator's acknowledgement. @param {Event} event */
export function acknowledges(event) {
  return event.kind === "request" && event.code === "ACCEPTED" && event.text.includes("ACKNOWLEDGE");
}

/** @param {Event} event @returns {Seen} */
function seenIn({ who, t }) {
  return { who: who || "the service itself", t };
}

/** @param {FaultRow[]} table  what each fault means and does */
export function createAlarms(table) {
  const known = new Map(table.map((row) => [row.name, row]));
  /** @type {Map<string, Alarm>} */
  const alarms = new Map();
  /** @type {Seen & {count: number} | null} */
  let last = null;

  /** @param {string} name @param {number} t */
  function raise(name, t) {
    const old = alarms.get(name),
      row = known.get(name);
    if (old?.stands) return;
    const unseen = old && !old.seen ? old : null;
    alarms.set(name, {
      name,
      meaning: row?.meaning ?? "its meaning is not known here",
      effect: row?.effect ?? "TRIP",
      since: unseen ? unseen.since : t,
      stands: true,
      seen: null,
      times: (unseen?.times ?? 0) + 1,
    });
  }

  /** @param {string} name */
  function clear(name) {
    const alarm = alarms.get(name);
    if (!alarm) return;
    alarm.stands = false;
    if (alarm.seen) alarms.delete(name);
  }

  /** Someone has seen alarms: those named, or all. @param {Seen} seen @param {string[]} [names] */
  function see(seen, names = [...alarms.keys()]) {
    const fresh = names
      .flatMap((name) => alarms.get(name) ?? [])
      .filter((alarm) => !alarm.seen && !(alarm.since > seen.t));
    for (const alarm of fresh) {
      alarm.seen = seen;
      if (!alarm.stands) alarms.delete(alarm.name);
    }
    if (fresh.length) last = { ...seen, count: fresh.length };
  }

  return {
    /** Begin anew: the events of the past follow. */
    forget: () => alarms.clear(),
    /** @param {Event} event */
    take(event) {
      if (event.kind === "fault_set") raise(event.code, event.t);
      else if (event.kind === "fault_cleared") clear(event.code);
      else if (event.kind === "acknowledged") see(seenIn(event), [event.code]);
      else if (acknowledges(event)) see(seenIn(event));
    },
    /**
     * The faults of the newest row have the last word about what stands.
     * @param {number} bits @param {number} t  since when, NaN where that is not known
     */
    stand(bits, t) {
      const names = new Set(namesOf(bits, table));
      for (const name of names) if (!alarms.get(name)?.stands) raise(name, t);
      for (const alarm of alarms.values()) if (alarm.stands && !names.has(alarm.name)) clear(alarm.name);
    },
    /** Not seen ones first, the oldest of them first; then those that were seen and still stand. @returns {Alarm[]} */
    list: () =>
      [...alarms.values()].sort((a, b) => Number(!!a.seen) - Number(!!b.seen) || (a.since || 0) - (b.since || 0)),
    /** Who saw alarms last. */
    get last() {
      return last;
    },
  };
}
