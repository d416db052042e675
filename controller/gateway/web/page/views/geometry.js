// Vectors and outlines for the picture of a machine. Pure; base axes unless said otherwise, m.

/** @typedef {[number, number, number]} Vec */

/**
 * R = Rz(yaw) Ry(pitch) Rx(roll), by rows.
 * @param {number} yaw
 * @param {number} pitch
 * @param {number} roll
 * @returns {[Vec, Vec, Vec]}
 */
export function rotation(yaw, pitch, roll) {
  const [ca, sa, cb, sb] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  const [cg, sg] = [Math.cos(roll), Math.sin(roll)];
  return [
    [ca * cb, ca * sb * sg - sa * cg, ca * sb * cg + sa * sg],
    [sa * cb, sa * sb * sg + ca * cg, sa * sb * cg - ca * sg],
    [-sb, cb * sg, cb * cg],
  ];
}

/** @param {[Vec, Vec, Vec]} R @param {Vec} a @returns {Vec} */
export function turned(R, a) {
  return /** @type {Vec} */ (R.map((row) => row[0] * a[0] + row[1] * a[1] + row[2] * a[2]));
}

/** @param {Vec} a @param {Vec} b @param {number} [share] of b @returns {Vec} */
export function plus(a, b, share = 1) {
  return [a[0] + share * b[0], a[1] + share * b[1], a[2] + share * b[2]];
}

/** @param {Vec} a @param {Vec} b @returns {Vec} */
export function cross(a, b) {
  return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
}

/** @param {Vec} a */
export function length(a) {
  return Math.hypot(...a);
}

/** @param {Vec} a @returns {Vec} */
export function unit(a) {
  const l = length(a) || 1;
  return [a[0] / l, a[1] / l, a[2] / l];
}

/**
 * Outline of points seen from above, counter-clockwise, `margin` further out from their middle.
 * @param {Vec[]} points
 * @param {number} margin
 */
export function outline(points, margin) {
  const flat = points.map(([x, y]) => [x, y]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const turn = (/** @type {number[]} */ o, /** @type {number[]} */ a, /** @type {number[]} */ b) =>
    (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  const half = (/** @type {number[][]} */ line) => {
    /** @type {number[][]} */
    const hull = [];
    for (const p of line) {
      while (hull.length > 1 && turn(hull[hull.length - 2], hull[hull.length - 1], p) <= 0) hull.pop();
      hull.push(p);
    }
    return hull.slice(0, -1);
  };
  const hull = [...half(flat), ...half([...flat].reverse())];
  const mx = hull.reduce((s, p) => s + p[0], 0) / hull.length,
    my = hull.reduce((s, p) => s + p[1], 0) / hull.length;
  return hull.map(([x, y]) => {
    const r = Math.hypot(x - mx, y - my) || 1;
    return [x + (margin * (x - mx)) / r, y + (margin * (y - my)) / r];
  });
}
