// What the page knows of the machine at hand: channels by name, legs, coordinates. Made of /api/meta; no document.

/**
 * @typedef {{name: string, unit: string, meaning: string}} Channel
 * @typedef {object} Machine
 * @property {any} meta  as the server told it
 * @property {Channel[]} channels
 * @property {(name: string) => string} unit
 * @property {(name: string) => boolean} has  whether there is such a channel
 * @property {number[]} legs  their numbers, from 1
 * @property {Coordinate[]} coordinates
 * @property {Measured[]} sensors
 * @property {string[]} telling  channels to begin with: a coordinate, its set-point, a leg
 * @typedef {object} Coordinate  of the pose
 * @property {string} name  channel @property {string} word @property {string} unit
 * @property {number} low @property {number} high @property {number} home
 * @property {boolean} free  it can be changed by itself: the others follow from the mechanism
 * @typedef {{name: string, channel: string, unit: string}} Measured  a sensor and its value
 */

// What a platform of a kind can change by itself; as controller.motion.trajectory has it.
/** @type {Record<string, string[]>} */
const FREE = { spherical: ["yaw_rad", "pitch_rad", "roll_rad"], "2r1t": ["z_m", "pitch_rad"] };

/** @param {any} meta @returns {Machine} */
export function machineOf(meta) {
  const channels = /** @type {Channel[]} */ (meta.channels),
    units = new Map(channels.map(({ name, unit }) => [name, unit]));
  const free = FREE[meta.geometry?.platform_kind] ?? meta.pose;
  const lead = free.includes("z_m") ? "z_m" : free[0];
  return {
    meta,
    channels,
    unit: (name) => units.get(name) ?? "1",
    has: (name) => units.has(name),
    telling: [lead, `reference_${lead}`, "following_error_1_m", "drive_1_n"],
    legs: Array.from({ length: meta.legs }, (_, k) => k + 1),
    coordinates: meta.pose.map((/** @type {string} */ name, /** @type {number} */ k) => ({
      name,
      word: name.replace(/_.*/, ""),
      unit: name.endsWith("_m") ? "m" : "rad",
      low: meta.limits.pose_min?.[k] ?? NaN,
      high: meta.limits.pose_max?.[k] ?? NaN,
      home: meta.home?.[k] ?? 0,
      free: free.includes(name),
    })),
    sensors: channels
      .filter(({ name }) => name.endsWith("_quality"))
      .map(({ name }) => {
        const sensor = name.replace(/_quality$/, "");
        const own = channels.find(
          (other) => other.name.startsWith(`${sensor}_`) && !/_(age_s|quality)$/.test(other.name),
        );
        return { name: sensor, channel: own?.name ?? "", unit: own?.unit ?? "1" };
      }),
  };
}
