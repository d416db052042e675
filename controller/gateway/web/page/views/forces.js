// Forces of the legs: drives against model and limit, load cells, pressures, inclinometer, what nothing explains.

import { el } from "../dom.js";
import { age } from "../format.js";
import { bar, flag, panel, readout, table } from "../widgets.js";

const NEAR = 0.8; // of the limit

/**
 * A sensor's value with its quality and age, in words only where something is wrong.
 * @param {import("../main.js").Page} page
 * @param {import("../machine.js").Measured} sensor
 */
function sensed(page, { name, channel, unit }) {
  const value = readout(unit, undefined, name.replaceAll("_", " ")),
    quality = flag(),
    { qualities } = page.machine.meta;
  const read = page.reader(channel),
    old = page.reader(`${name}_age_s`),
    code = page.reader(`${name}_quality`);
  return {
    element: el("span", { class: "sensed" }, value.element, quality.element),
    /** @param {import("../main.js").Moment} moment */
    draw({ worth, age_s }) {
      const word = qualities[code()] ?? "no value",
        good = word === "GOOD";
      value.draw(read(), worth);
      quality.draw(
        worth === "none" ? "" : `${good ? "" : `${word} `}${age(old() + age_s)}`,
        good || worth === "none" ? null : "WARN",
      );
    },
  };
}

/** @param {import("../main.js").Page} page */
export function forcesView(page) {
  const { machine } = page,
    { limits } = machine.meta;
  const kinds = ["cell", "head_pressure", "rod_pressure"].filter((kind) =>
    machine.sensors.some(({ name }) => name.startsWith(`${kind}_`)),
  );
  const lines = machine.legs.map((i) => ({
    i,
    most: limits.force_n[i - 1],
    peak: limits.torque_force_n?.[i - 1] ?? NaN, // force of the drive at its peak torque
    drive: readout("N", 1, `leg ${i} drive force`),
    model: readout("N", 1, `leg ${i} model force`),
    torque: readout("1", 0, `leg ${i} share of the peak torque`),
    rest: readout("N", 1, `leg ${i} residual`),
    bar: bar({ zero: true }),
    read: page.reader(`drive_${i}_n`),
    modelled: page.reader(`model_${i}_n`),
    residual: page.reader(`residual_${i}_n`),
    sensors: kinds.map((kind) => {
      const sensor = machine.sensors.find(({ name }) => name === `${kind}_${i}`);
      return sensor ? sensed(page, sensor) : null;
    }),
  }));
  const screws = lines.some(({ peak }) => Number.isFinite(peak));
  const others = machine.sensors
    .filter(({ name }) => !/_\d+$/.test(name))
    .map((sensor) => ({ sensor, part: sensed(page, sensor) }));
  const push = ["fx_n", "fy_n", "fz_n"].map((axis) => ({
    axis,
    value: readout("N", 1, `external force ${axis[1]}`),
    read: page.reader(`wrench_${axis}`),
  }));
  const percent = (/** @type {{element: HTMLElement}} */ part) =>
    el("span", {}, part.element, el("span", { class: "unit" }, "%"));
  const frame = panel(
    "Forces",
    table(
      [
        "",
        "drive",
        "to its limit, model marked",
        "model",
        ...(screws ? ["of peak torque"] : []),
        ...kinds.map(
          (kind) =>
            ({ cell: "load cell, age", head_pressure: "head side, age", rod_pressure: "rod side, age" })[kind] ?? kind,
        ),
        "unexplained",
      ],
      lines.map((line) => [
        el("span", { class: "name" }, `leg ${line.i}`),
        line.drive.element,
        line.bar.element,
        line.model.element,
        ...(screws ? [percent(line.torque)] : []),
        ...line.sensors.map((part) => part?.element ?? "none"),
        line.rest.element,
      ]),
      "forces",
    ),
    el(
      "p",
      { class: "line" },
      "From outside, on the platform: ",
      ...push.flatMap(({ axis, value }) => [el("span", { class: "name" }, `${axis[1]} `), value.element, " "]),
      ...others.flatMap(({ sensor, part }) => [
        el("span", { class: "name" }, `${sensor.name.replaceAll("_", " ")} `),
        part.element,
        " ",
      ]),
    ),
  );
  return {
    element: frame.element,
    /** @param {import("../main.js").Moment} moment */
    draw(moment) {
      const { age_s, worth } = moment;
      frame.draw(age_s + page.value("age_s"), worth);
      for (const line of lines) {
        const force = line.read(),
          share = Math.abs(force) / line.most;
        line.drive.draw(force, worth);
        line.model.draw(line.modelled(), worth);
        line.torque.draw(Math.round((100 * Math.abs(force)) / line.peak), worth);
        line.rest.draw(line.residual(), worth);
        line.bar.draw(force, -line.most, line.most, line.modelled(), share > 1 ? "beyond" : share > NEAR ? "near" : "");
        for (const part of line.sensors) part?.draw(moment);
      }
      for (const { value, read } of push) value.draw(read(), worth);
      for (const { part } of others) part.draw(moment);
    },
  };
}
