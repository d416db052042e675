// The machine in space, from the geometry of its file: plates, joints, and legs that telescope.

import * as THREE from "../vendor/three.module.min.js";
import { el, text } from "../dom.js";
import { quantity } from "../format.js";
import { cross, length, outline, plus, rotation, turned, unit } from "./geometry.js";

/** @typedef {import("./geometry.js").Vec} Vec */

const COLOURS = {
  base: 0x8b9299,
  plate: 0xb4bac0,
  cylinder: 0x737b83,
  rod: 0xd9dde0,
  joint: 0x4a5157,
  near: 0xd98200,
  beyond: 0xc62828,
  ghost: 0x005f9e,
  column: 0x8b9299,
};
const BACKGROUND = 0xd7dadc;
const NEAR = 0.05; // of the stroke
const Y = new THREE.Vector3(0, 1, 0);
const VIEWS = { slanted: [-0.9, 0.35], front: [-Math.PI / 2, 0.02], side: [0, 0.02], top: [-Math.PI / 2, 1.55] };

/** @param {number} colour */
const matt = (colour) => new THREE.MeshStandardMaterial({ color: colour, roughness: 0.75, metalness: 0.15 });

/** A rod of length 1 that `between` stretches. @param {number} radius @param {any} material @param {number} [top] */
function rod(radius, material, top = radius) {
  return new THREE.Mesh(new THREE.CylinderGeometry(top, radius, 1, 24), material);
}

/** @param {any} mesh @param {Vec} a @param {Vec} b */
function between(mesh, a, b) {
  const from = new THREE.Vector3(...a),
    to = new THREE.Vector3(...b),
    line = to.clone().sub(from),
    l = line.length();
  mesh.position.copy(from).addScaledVector(line, 0.5);
  mesh.quaternion.setFromUnitVectors(Y, line.divideScalar(l || 1));
  mesh.scale.set(1, l, 1);
}

/** A pin through `at` along an axis. @param {any} mesh @param {Vec} at @param {Vec} axis @param {number} half */
function pin(mesh, at, axis, half) {
  between(mesh, plus(at, axis, -half), plus(at, axis, half));
}

/** A plate with this outline. @param {number[][]} corners @param {number} thickness @param {any} material */
function plate(corners, thickness, material) {
  const shape = new THREE.Shape(corners.map(([x, y]) => new THREE.Vector2(x, y)));
  const geometry = new THREE.ExtrudeGeometry(shape, {
    depth: thickness,
    bevelEnabled: true,
    bevelThickness: thickness / 5,
    bevelSize: thickness / 4,
    bevelSegments: 2,
  });
  const mesh = new THREE.Mesh(geometry, material);
  mesh.add(
    new THREE.LineSegments(new THREE.EdgesGeometry(geometry, 30), new THREE.LineBasicMaterial({ color: 0x5b636a })),
  );
  return mesh;
}

/** A screw thread of length 1 along y. @param {number} radius @param {number} turns @param {any} material */
function thread(radius, turns, material) {
  const points = Array.from({ length: 12 * turns + 1 }, (_, k) => {
    const angle = (k * Math.PI) / 6;
    return new THREE.Vector3(radius * Math.cos(angle), k / (12 * turns) - 0.5, radius * Math.sin(angle));
  });
  return new THREE.Mesh(
    new THREE.TubeGeometry(new THREE.CatmullRomCurve3(points), 12 * turns, radius * 0.16, 5),
    material,
  );
}

/** @param {import("../main.js").Page} page */
export function machine3d(page) {
  const { machine } = page,
    found = machine.meta.geometry;
  const title = el("p", { class: "line" });
  const canvas = /** @type {HTMLCanvasElement} */ (
    el("canvas", {
      tabindex: 0,
      role: "img",
      "aria-label": "The machine in space. Arrow keys turn it, plus and minus zoom.",
    })
  );
  const labels = el("div", { class: "labels", "aria-hidden": "true" });
  const cameraButtons = el(
    "div",
    { class: "choice", role: "group", "aria-label": "camera" },
    ...Object.keys(VIEWS).map((name) =>
      el(
        "button",
        { type: "button", class: "small", onclick: () => look(/** @type {keyof typeof VIEWS} */ (name)) },
        name,
      ),
    ),
  );
  const element = el(
    "div",
    { class: "space" },
    el(
      "div",
      { class: "tools" },
      cameraButtons,
      el("span", { class: "quiet" }, "blue outline: set-point; drag to turn, wheel or two fingers to zoom"),
    ),
    el("div", { class: "canvas-place" }, canvas, labels),
    title,
  );
  /** @type {any} */
  let renderer = null;
  let missing = found ? "" : "The machine file of this run cannot be read: there is no picture.";
  try {
    if (!missing) renderer = new THREE.WebGLRenderer({ canvas, antialias: true });
  } catch {
    missing = "This browser has no WebGL: there is no picture in space here.";
  }
  if (missing) return { element: el("p", { class: "quiet missing" }, missing), draw() {} };

  const scene = new THREE.Scene();
  scene.background = new THREE.Color(BACKGROUND);
  const camera = new THREE.PerspectiveCamera(32, 1, 0.02, 60);
  camera.up.set(0, 0, 1);
  scene.add(new THREE.HemisphereLight(0xffffff, 0xb0b5ba, 2.6));
  const sun = new THREE.DirectionalLight(0xffffff, 1.6);
  scene.add(sun, sun.target);

  const model = build(scene, machine);
  let [azimuth, elevation] = VIEWS.slanted,
    distance = 3.5 * model.radius,
    dirty = true,
    drawnRow = -1;

  /** @param {keyof typeof VIEWS} name */
  function look(name) {
    [azimuth, elevation] = VIEWS[name];
    distance = 3.5 * model.radius;
    dirty = true;
  }

  /** @param {number} turn @param {number} tip @param {number} nearer */
  function move(turn, tip, nearer = 1) {
    azimuth += turn;
    elevation = Math.min(1.55, Math.max(-0.6, elevation + tip));
    distance = Math.min(8 * model.radius, Math.max(0.8 * model.radius, distance * nearer));
    dirty = true;
  }
  bindPointers(canvas, move);
  canvas.addEventListener("keydown", ({ key }) => {
    const step = /** @type {Record<string, [number, number, number?]>} */ ({
      ArrowLeft: [-0.1, 0],
      ArrowRight: [0.1, 0],
      ArrowUp: [0, 0.1],
      ArrowDown: [0, -0.1],
      "+": [0, 0, 0.9],
      "-": [0, 0, 1.1],
    })[key];
    if (step) move(...step);
  });
  const tags = model.anchors.map(({ word, kind }) => {
    const tag = el("span", { class: `tag ${kind}` }, word);
    labels.append(tag);
    return tag;
  });
  new ResizeObserver(() => (dirty = true)).observe(element);

  function render() {
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    const ratio = Math.min(window.devicePixelRatio, 1.5);
    if (canvas.width !== Math.floor(width * ratio) || canvas.height !== Math.floor(height * ratio)) {
      renderer.setPixelRatio(ratio);
      renderer.setSize(width, height, false);
    }
    camera.aspect = width / height;
    const back = distance * Math.max(1, 1.25 / camera.aspect);
    camera.position.set(
      ...plus(
        model.middle,
        [Math.cos(azimuth) * Math.cos(elevation), Math.sin(azimuth) * Math.cos(elevation), Math.sin(elevation)],
        back,
      ),
    );
    camera.lookAt(...model.middle);
    camera.updateProjectionMatrix();
    sun.position.copy(camera.position).add(new THREE.Vector3(0.6, 0.4, 1.6).multiplyScalar(model.radius));
    sun.target.position.set(...model.middle);
    renderer.render(scene, camera);
    model.anchors.forEach(({ at }, k) => {
      const p = new THREE.Vector3(...at()).project(camera);
      tags[k].style.transform =
        `translate(${((p.x + 1) * width) / 2}px, ${((1 - p.y) * height) / 2}px) translate(-50%, -50%)`;
    });
  }

  const pose = machine.coordinates.map(({ name }) => page.reader(name));
  const wanted = machine.coordinates.map(({ name }) => page.reader(`reference_${name}`));
  return {
    element,
    /** @param {import("../main.js").Moment} moment */
    draw({ worth }) {
      element.dataset.worth = worth;
      if (page.rows.next !== drawnRow) {
        drawnRow = page.rows.next;
        const x = pose.map((read) => read());
        if (x.every(Number.isFinite))
          model.place(
            x,
            wanted.map((read) => read()),
          );
        dirty = true;
      }
      const words =
        worth === "none"
          ? "no data: the picture shows the last known pose"
          : machine.coordinates.map(({ word, unit }, k) => `${word} ${quantity(pose[k](), unit)}`).join("   ");
      text(title, words + (worth === "stale" ? "   STALE" : ""));
      if (!dirty) return;
      dirty = false;
      render();
    },
  };
}

/**
 * The meshes of a machine and what moves them.
 * @param {any} scene @param {import("../machine.js").Machine} machine
 */
function build(scene, machine) {
  const found = machine.meta.geometry,
    n = machine.legs.length;
  const base = /** @type {Vec[]} */ (found.base_m),
    top = /** @type {Vec[]} */ (found.platform_m);
  const low = /** @type {number[]} */ (found.length_min_m),
    high = /** @type {number[]} */ (found.length_max_m);
  const home = /** @type {number[]} */ (machine.coordinates.map((one) => one.home));
  const size = Math.max(...low),
    ground = Math.min(...base.map((b) => b[2]));
  const r = 0.03 * size; // of a cylinder
  const wide = Math.max(...base.map(([x, y]) => Math.hypot(x, y)), ...top.map(([x, y]) => Math.hypot(x, y)));
  const spherical = found.platform_kind === "spherical";
  const summit = spherical ? 0 : home[2];
  const middle = /** @type {Vec} */ ([0, 0, (ground + summit) / 2 + 0.02 * size]);
  const radius =
    Math.hypot(wide, (summit - ground) / 2 + 0.35 * Math.max(...top.map(([x, y]) => Math.hypot(x, y)))) * 1.02;

  const floor = plate(outline(base, 3.2 * r), 0.8 * r, matt(COLOURS.base));
  floor.position.z = ground - 2.2 * r;
  const grid = new THREE.GridHelper(Math.ceil(4 * wide), Math.ceil(4 * wide) * 4, 0xaab0b5, 0xc4c9cc);
  grid.rotation.x = Math.PI / 2;
  grid.position.z = ground - 2.4 * r;
  scene.add(floor, grid);

  const platform = new THREE.Group();
  const corners = outline(top, 2.4 * r),
    level = top.reduce((s, p) => s + p[2], 0) / n;
  const body = plate(corners, 0.7 * r, matt(COLOURS.plate));
  body.position.z = level + 0.9 * r;
  platform.add(body, arrow([1, 0, 0], 0.25 * wide, level + 1.8 * r));
  const ghost = new THREE.LineLoop(
    new THREE.BufferGeometry().setFromPoints(corners.map(([x, y]) => new THREE.Vector3(x, y, level + 1.9 * r))),
    new THREE.LineBasicMaterial({ color: COLOURS.ghost }),
  );
  const outlined = new THREE.Group();
  outlined.add(ghost);
  scene.add(platform, outlined);
  if (spherical) {
    const column = rod(1.3 * r, matt(COLOURS.column), 0.9 * r);
    between(column, [0, 0, ground - 1.5 * r], [0, 0, 0]);
    const ball = new THREE.Mesh(new THREE.SphereGeometry(1.6 * r, 24, 16), matt(COLOURS.joint));
    scene.add(column, ball);
  }

  const legs = machine.legs.map((_, k) => {
    const kind = /** @type {string} */ (found.leg_kind[k]),
      hydraulic = found.drive?.[k] === "hydraulic";
    const outer = hydraulic && found.piston_diameter_m?.[k] ? found.piston_diameter_m[k] / 2 + 0.006 : r;
    const inner = hydraulic && found.rod_diameter_m?.[k] ? found.rod_diameter_m[k] / 2 : 0.5 * r;
    const cylinder = rod(outer, matt(COLOURS.cylinder)),
      piston = rod(inner, matt(COLOURS.rod)),
      gland = rod(1.22 * outer, matt(COLOURS.joint));
    const joint = matt(COLOURS.joint);
    const parts = {
      cylinder,
      piston,
      gland,
      turns: kind === "UHU" ? thread(inner, 14, matt(COLOURS.joint)) : null,
      collar: kind === "UPRU" ? rod(1.9 * inner, joint) : null,
      motor: hydraulic ? null : rod(1.25 * outer, joint),
      basePins: kind === "RPU" ? [rod(0.55 * r, joint)] : [rod(0.4 * r, joint), rod(0.4 * r, joint)],
      topPins:
        kind === "UPS" ? [] : kind === "UPR" ? [rod(0.55 * r, joint)] : [rod(0.4 * r, joint), rod(0.4 * r, joint)],
      ball: kind === "UPS" ? new THREE.Mesh(new THREE.SphereGeometry(1.05 * r, 20, 14), joint) : null,
    };
    for (const part of [
      cylinder,
      piston,
      gland,
      parts.turns,
      parts.collar,
      parts.motor,
      parts.ball,
      ...parts.basePins,
      ...parts.topPins,
    ]) {
      if (part) scene.add(part);
    }
    return {
      parts,
      axis: /** @type {Vec} */ (unit(found.base_axis[k])),
      above: found.platform_axis[k] ? /** @type {Vec} */ (unit(found.platform_axis[k])) : null,
    };
  });
  scene.add(
    arrow([1, 0, 0], 0.5 * wide, ground - 1.2 * r),
    arrow([0, 1, 0], 0.5 * wide, ground - 1.2 * r),
    arrow([0, 0, 1], 0.5 * wide, ground - 1.2 * r),
  );

  /** @param {number[]} x @param {number[]} target */
  function place(x, target) {
    const R = rotation(x[3], x[4], x[5]),
      o = /** @type {Vec} */ (x.slice(0, 3));
    put(platform, o, R);
    outlined.visible = target.every(Number.isFinite);
    if (outlined.visible)
      put(outlined, /** @type {Vec} */ (target.slice(0, 3)), rotation(target[3], target[4], target[5]));
    legs.forEach(({ parts, axis, above }, k) => {
      const b = base[k],
        p = plus(o, turned(R, top[k])),
        line = plus(p, b, -1),
        l = length(line),
        n = unit(line);
      const barrel = 0.9 * low[k],
        slide = Math.min(0.97 * low[k], high[k] - barrel + 0.12 * low[k]);
      const start = (parts.motor ? 0.1 : 0.06) * low[k];
      between(parts.cylinder, plus(b, n, start), plus(b, n, barrel));
      between(parts.gland, plus(b, n, barrel - 0.04 * low[k]), plus(b, n, barrel + 0.004 * low[k]));
      between(parts.piston, plus(p, n, -slide), p);
      if (parts.turns) between(parts.turns, plus(b, n, barrel), plus(p, n, -0.05 * low[k]));
      if (parts.collar) between(parts.collar, plus(p, n, -0.075 * low[k]), plus(p, n, -0.04 * low[k]));
      if (parts.motor) between(parts.motor, plus(b, n, 0.045 * low[k]), plus(b, n, 0.16 * low[k]));
      const q = unit(cross(axis, n));
      pin(parts.basePins[0], b, axis, 1.5 * r);
      if (parts.basePins[1]) pin(parts.basePins[1], b, q, 1.5 * r);
      if (parts.ball) parts.ball.position.set(...p);
      if (above) {
        const fixed = turned(R, above);
        if (parts.topPins[0]) pin(parts.topPins[0], p, fixed, 1.4 * r);
        if (parts.topPins[1]) pin(parts.topPins[1], p, unit(cross(fixed, n)), 1.4 * r);
      }
      const margin = NEAR * (high[k] - low[k]);
      const colour =
        l < low[k] || l > high[k]
          ? COLOURS.beyond
          : l < low[k] + margin || l > high[k] - margin
            ? COLOURS.near
            : COLOURS.cylinder;
      parts.cylinder.material.color.setHex(colour);
    });
  }
  place(home, home);
  const outside = (/** @type {Vec} */ b) => plus(b, unit([b[0], b[1], 0]), 4.5 * r);
  const reach = 0.56 * wide;
  const anchors = [
    ...base.map((b, k) => ({ word: String(k + 1), kind: "leg", at: () => outside(b) })),
    ...[
      ["x", [reach, 0, ground]],
      ["y", [0, reach, ground]],
      ["z", [0, 0, ground + reach]],
    ].map(([word, at]) => ({ word: /** @type {string} */ (word), kind: "axis", at: () => /** @type {Vec} */ (at) })),
  ];
  return { place, middle, radius, anchors };
}

/** @param {any} group @param {Vec} o @param {[Vec, Vec, Vec]} R */
function put(group, o, R) {
  group.matrixAutoUpdate = false;
  group.matrix.set(...R[0], o[0], ...R[1], o[1], ...R[2], o[2], 0, 0, 0, 1);
  group.matrixWorldNeedsUpdate = true;
}

/** @param {Vec} way @param {number} l @param {number} height */
function arrow(way, l, height) {
  return new THREE.ArrowHelper(
    new THREE.Vector3(...way),
    new THREE.Vector3(0, 0, height),
    l,
    0x343a40,
    0.12 * l,
    0.06 * l,
  );
}

/**
 * Mouse, pen and fingers: drag turns, wheel and two fingers zoom.
 * @param {HTMLElement} canvas
 * @param {(turn: number, tip: number, nearer?: number) => void} move
 */
function bindPointers(canvas, move) {
  /** @type {Map<number, PointerEvent>} */
  const down = new Map();
  const spread = () => {
    const [a, b] = [...down.values()];
    return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  };
  canvas.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before) return;
    const old = down.size === 2 ? spread() : 0;
    down.set(event.pointerId, event);
    if (down.size === 2) move(0, 0, old / Math.max(1, spread()));
    else move((before.clientX - event.clientX) * 0.008, (event.clientY - before.clientY) * 0.006);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, (event) => down.delete(/** @type {PointerEvent} */ (event).pointerId));
  }
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      move(0, 0, Math.exp(event.deltaY * 0.001));
    },
    { passive: false },
  );
}
