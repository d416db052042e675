// Numbers, times and names as an operator reads them: mm, degrees and bar outside, SI inside.

/**
 * @typedef {{unit: string, factor: number, digits: number}} Shown  shown value = factor * SI value
 */

const DEG = 180 / Math.PI;
/** @type {Record<string, Shown>} */
const SHOWN = {
  m: { unit: "mm", factor: 1e3, digits: 2 },
  "m/s": { unit: "mm/s", factor: 1e3, digits: 1 },
  "m/s²": { unit: "m/s²", factor: 1, digits: 3 },
  rad: { unit: "°", factor: DEG, digits: 3 },
  "rad/s": { unit: "°/s", factor: DEG, digits: 2 },
  "rad/s²": { unit: "°/s²", factor: DEG, digits: 1 },
  Pa: { unit: "bar", factor: 1e-5, digits: 1 },
  N: { unit: "N", factor: 1, digits: 1 },
  "N m": { unit: "N m", factor: 1, digits: 1 },
  s: { unit: "s", factor: 1, digits: 4 },
  "s in ms": { unit: "ms", factor: 1e3, digits: 2 }, // of what lasts less than a tick
  Hz: { unit: "Hz", factor: 1, digits: 2 },
};
const PLAIN = { unit: "", factor: 1, digits: 3 };

/** How a quantity of this SI unit is shown. @param {string} unit @returns {Shown} */
export function shown(unit) {
  return SHOWN[unit] ?? PLAIN;
}

/**
 * Digits of an SI value in the shown unit, without the unit.
 * @param {number} value
 * @param {string} unit
 * @param {number} [digits]
 */
export function number(value, unit, digits) {
  if (!Number.isFinite(value)) return "no value";
  const how = shown(unit);
  if (how === PLAIN && Number.isInteger(value)) return String(value);
  return (value * how.factor)
    .toFixed(digits ?? how.digits)
    .replace(/^-(0(?:\.0*)?)$/, "$1")
    .replace("-", "−");
}

/** Number and unit of an SI value. @param {number} value @param {string} unit @param {number} [digits] */
export function quantity(value, unit, digits) {
  if (!Number.isFinite(value)) return "no value";
  const name = shown(unit).unit;
  return number(value, unit, digits) + (name === "" || name === "°" ? name : ` ${name}`);
}

/**
 * A channel without the unit at the end of its name, and the unit in which it is shown.
 * @param {string} name
 * @param {string} unit
 */
export function label(name, unit) {
  const bare = name.replace(/_(m|rad|n|nm|pa|s|hz)(_s2?)?$/, "");
  const how = shown(unit).unit;
  return how ? `${bare} [${how}]` : bare;
}

/**
 * What a channel has in common with others that belong to the same axis: legs and their set-points, measured and wanted
 * coordinates, all forces.
 * @param {string} name @param {string} unit
 */
export function quantityOf(name, unit) {
  const how = shown(unit).unit;
  if (unit === "N" || unit === "Pa" || unit === "flags") return how || "bits";
  const bare = label(name, unit)
    .replace(/ \[.*/, "")
    .replace(/^(reference|request|stream)_/, "")
    .replace(/_\d+$/, "");
  const what = ["setpoint", "command", "length"].includes(bare) ? "leg" : bare;
  return how ? `${what} [${how}]` : what;
}

/** An age in seconds. @param {number} age_s */
export function age(age_s) {
  if (!Number.isFinite(age_s)) return "no value";
  if (age_s < 9.95) return `${Math.max(age_s, 0).toFixed(age_s < 0.0995 ? 2 : 1)} s`;
  return age_s < 119.5 ? `${age_s.toFixed(0)} s` : `${(age_s / 60).toFixed(0)} min`;
}

/** A duration in words for a list. @param {number | null} duration_s */
export function duration(duration_s) {
  if (duration_s === null || !Number.isFinite(duration_s)) return "unknown";
  const whole = Math.round(duration_s);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  if (whole < 60) return `${duration_s.toFixed(1)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}:${two(whole % 60)} min`;
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)} h`;
}

/** Bytes for a list. @param {number} bytes */
export function size(bytes) {
  if (bytes < 1e4) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** Local time of day of a Unix time. @param {number} unix_s @param {boolean} [tenths] */
export function clock(unix_s, tenths = false) {
  if (!Number.isFinite(unix_s)) return "no value";
  const time = new Date(unix_s * 1e3);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const whole = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return tenths ? `${whole}.${Math.floor(time.getMilliseconds() / 100)}` : whole;
}

/** Local date and time of a Unix time. @param {number} unix_s */
export function date(unix_s) {
  if (!Number.isFinite(unix_s)) return "no value";
  const time = new Date(unix_s * 1e3);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${clock(unix_s)}`;
}

/**
 * What an operator types, decimal comma allowed, as SI; NaN where it is no number.
 * @param {string} typed
 * @param {string} unit
 */
export function parse(typed, unit) {
  const plain = typed.trim().replace(",", ".").replace("−", "-");
  return plain === "" ? NaN : Number(plain) / shown(unit).factor;
}
