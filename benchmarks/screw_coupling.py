"""The screw coupling of a 6-UHU with and without compensation: what Cong et al. did with their tank simulator.

    python -m benchmarks.screw_coupling [--figure PATH]

Sines about Z (30 degrees, 4.3 s, the paper's), X and Y (12 degrees, ours). The motor positions that the controller
recorded move the model (the paper's mechanism-model combined motion), and the plant's true pose stands beside it. A
translation along the axis of rotation was not asked for. The plant differs from the model in masses, friction, delay;
its joints are where the model has them, except for the last rows: what they are off is a matter of calibration, which
no compensation of the screws can mend. Predicted: exact kinematics with axes at the leg lengths of the reference.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from benchmarks.system import World, arguments, draw, show, verdict
from controller.mechanism import kinematics
from controller.mechanism.model import build
from controller.records import POSE, Array, RequestKind

PERIOD_S = 4.3
ROTATIONS = {"Z": (3, 2, 30.0), "X": (5, 0, 12.0), "Y": (4, 1, 12.0)}  # angle, translation along the axis, degrees
PERIODS = 2  # looked at, after the ramp
GAP_M = 0.02  # of the coupling, that may be left with compensation
PREDICTED = 0.02  # how well the coupling without compensation is known
PAPER_SPEED, PAPER_ACCELERATION = -0.82, (0.175, 0.140)  # m/s2


class Motion(NamedTuple):
    """Periods of one sine: off the commanded axis, the translation along it."""

    wanted_rad: Array  # the reference, a row a tick
    turned_rad: Array  # true angle, likewise
    model_m: Array  # of the model moved by the recorded motor positions, likewise
    true_m: Array  # a row a PLC cycle
    true_m_s: Array
    true_m_s2: Array
    cycle_s: float


def play(axis: str, compensated: bool, joints_off_m: float = 0.0) -> Motion:
    """Run a sine about an axis in the virtual cell."""
    angle, along, degrees = ROTATIONS[axis]
    world = World("6-uhu", {"screw_compensation": compensated}, {"geometry_error_m": joints_off_m})
    world.ready()
    amplitude = np.zeros(6)
    amplitude[angle] = math.radians(degrees)
    poses: list[Array] = []
    speeds: list[float] = []
    motors: list[Array] = []
    wanted: list[Array] = []

    def watch() -> None:
        poses.append(world.plant.pose())
        speeds.append(float(world.plant.data.qvel[along]))  # a free joint: velocity of o, base axes

    world.watch = watch
    world.order(RequestKind.SINE, amplitude, frequency_hz=1.0 / PERIOD_S)
    for _ in range(round((PERIODS + 1) * PERIOD_S / world.setup.period_s)):
        wanted.append(world.step().reference.pose)
        motors.append(world.read["position_m"][:6].copy())

    ticks, cycle_s = round(PERIODS * PERIOD_S / world.setup.period_s), world.cell.plc_cycle_s
    a_tick = round(world.setup.period_s / cycle_s)
    true, home = np.array(poses)[-ticks * a_tick :], world.setup.home
    speed = np.array(speeds)
    return Motion(
        wanted_rad=np.array(wanted)[-ticks:, angle],
        turned_rad=true[a_tick - 1 :: a_tick, angle],
        model_m=moved(world, np.array(motors))[-ticks:, along] - home[along],
        true_m=true[:, along] - home[along],
        true_m_s=speed[-len(true) :],
        true_m_s2=np.gradient(speed, cycle_s)[-len(true) :],
        cycle_s=cycle_s,
    )


def moved(world: World, axes_m: Array) -> Array:
    """Poses (N, 6) of the model with the axes at axes_m (N, 6), from home on."""
    model, x, twist = build(world.machine), world.setup.home.copy(), np.zeros(6)
    poses = np.empty((len(axes_m), 6))
    for q, pose in zip(axes_m, poses, strict=True):
        assert kinematics.forward(model, q, x, twist, pose) >= 0
        x = pose.copy()
    return poses


def predict(axis: str) -> tuple[float, float, float]:
    """Half the range of the translation (m), peak speed and acceleration of a steady sine without compensation."""
    angle, along, degrees = ROTATIONS[axis]
    world = World("6-uhu")
    t = np.linspace(0.0, 2.0 * PERIOD_S, 4001)
    x = np.tile(world.setup.home, (len(t), 1))
    x[:, angle] += math.radians(degrees) * np.sin(2.0 * math.pi * t / PERIOD_S)
    lengths = np.empty((len(t), 6))
    for pose, length in zip(x, lengths, strict=True):
        kinematics.leg_lengths(world.setup.machine, pose, length)
    z = moved(world, lengths)[:, along]
    v = np.gradient(z, t)
    a = np.gradient(v, t)
    return half(z), peak(v[5:-5]), peak(a[5:-5])


def half(values: Array) -> float:
    """Half of the range."""
    return 0.5 * float(np.ptp(values))


def peak(values: Array) -> float:
    return float(np.abs(values).max())


def plot(figure: Any, runs: dict[tuple[str, bool], Motion]) -> None:
    """Like the paper's figures 8 to 10: angle, way, speed, acceleration of the turn about Z; ways of the others."""
    axes = figure.subplots(3, 2, sharex=True)
    for compensated, label, style in ((False, "without compensation", "-"), (True, "with", "--")):
        z = runs["Z", compensated]
        for ax, values, name in (
            (axes[0][0], np.rad2deg(z.turned_rad), "yaw, degrees"),
            (axes[0][1], 1e3 * z.true_m, "z, mm"),
            (axes[1][0], 1e3 * z.true_m_s, "speed along z, mm/s"),
            (axes[1][1], 1e3 * z.true_m_s2, "acceleration along z, mm/s²"),
            (axes[2][0], 1e3 * runs["X", compensated].true_m, "rotation about X: x, mm"),
            (axes[2][1], 1e3 * runs["Y", compensated].true_m, "rotation about Y: y, mm"),
        ):
            ax.plot(np.linspace(0.0, PERIODS * PERIOD_S, len(values)), values, style, lw=0.9, label=label)
            ax.set_ylabel(name)
    axes[0][1].legend(loc="upper right")
    for ax in axes[2]:
        ax.set_xlabel("time, s")


def compare(runs: dict[tuple[str, bool], Motion], predicted: dict[str, tuple[float, float, float]]) -> list[str]:
    """Table of the translations, and the lines that are missed."""
    missed: list[str] = []
    print(
        f"{'':<34}{'predicted':>10}{'motors through the model':>32}{'true pose':>32}{'true angle off':>20}\n"
        f"{'half the range of the translation':<34}{'mm':>10}"
        + 2 * f"{'without mm':>13}{'with mm':>10}{'ratio':>9}"
        + f"{'without °':>12}{'with °':>8}"
    )
    for axis in ROTATIONS:
        without, with_ = runs[axis, False], runs[axis, True]
        expected = predicted[axis][0]
        line = f"{axis + ' rotation: ' + POSE[ROTATIONS[axis][1]][0]:<34}{1e3 * expected:10.4f}"
        for where, key in (("model", "model_m"), ("true pose", "true_m")):
            open_m, closed_m = half(getattr(without, key)), half(getattr(with_, key))
            line += f"{1e3 * open_m:13.4f}{1e3 * closed_m:10.4f}{closed_m / open_m:9.4f}"
            if abs(open_m / expected - 1.0) > PREDICTED:
                missed.append(f"{axis}, {where}: {1e3 * open_m:.4f} mm, predicted {1e3 * expected:.4f} mm")
            if closed_m > GAP_M * open_m:
                missed.append(f"{axis}, {where}: {closed_m / open_m:.3f} of the coupling is left, expected {GAP_M}")
        off = [math.degrees(peak(run.turned_rad - run.wanted_rad)) for run in (without, with_)]
        print(f"{line}{off[0]:12.4f}{off[1]:8.4f}", flush=True)
    print(
        f"lines: without compensation within {100 * PREDICTED:.0f} % of the prediction, with it {GAP_M} of it at most"
    )
    return missed


def rates(runs: dict[tuple[str, bool], Motion], predicted: dict[str, tuple[float, float, float]]) -> None:
    """Speed and acceleration off the commanded axis beside the paper's."""
    before, after = PAPER_ACCELERATION
    _, speed, acceleration = predicted["Z"]
    print(f"\n{'peaks along Z, rotation about Z':<44}{'without':>10}{'with':>10}{'change':>9}")
    print(f"{'speed, coupling alone, mm/s':<44}{1e3 * speed:10.3f}{0.0:10.3f}{'-100 %':>9}")
    print(f"{'acceleration, coupling alone, mm/s²':<44}{1e3 * acceleration:10.3f}{0.0:10.3f}{'-100 %':>9}")
    without, with_ = runs["Z", False], runs["Z", True]
    for name, one, other in (
        ("speed of the plant, mm/s", peak(without.true_m_s), peak(with_.true_m_s)),
        ("acceleration of the plant, mm/s²", peak(without.true_m_s2), peak(with_.true_m_s2)),
        ("the same, root of the mean square", float(np.std(without.true_m_s2)), float(np.std(with_.true_m_s2))),
    ):
        print(f"{name:<44}{1e3 * one:10.3f}{1e3 * other:10.3f}{100 * (other / one - 1.0):7.0f} %")
    print(f"{'speed error, the paper':<44}{'–':>10}{'–':>10}{100 * PAPER_SPEED:7.0f} %")
    change = 100 * (after / before - 1.0)
    print(f"{'acceleration, the paper (it says -25 %)':<44}{1e3 * before:10.0f}{1e3 * after:10.0f}{change:7.0f} %")


def main() -> None:
    given = arguments("screw_coupling", __doc__).parse_args()
    predicted = {axis: predict(axis) for axis in ROTATIONS}
    runs: dict[tuple[str, bool], Motion] = {}
    for axis in ROTATIONS:
        for compensated in (False, True):
            show(f"rotation about {axis}, {'with' if compensated else 'without'} compensation ...")
            runs[axis, compensated] = play(axis, compensated)
    missed = compare(runs, predicted)
    rates(runs, predicted)
    joints_off_m = World("6-uhu").cell.geometry_error_m or math.nan
    show("the plant of the simulation site ...")
    without, with_ = (play("Z", compensated, joints_off_m) for compensated in (False, True))
    print(
        f"\njoints {1e3 * joints_off_m:.1f} mm off, rotation about Z: true z ±{1e3 * half(without.true_m):.4f} mm "
        f"without compensation, ±{1e3 * half(with_.true_m):.4f} mm with;\nmotors through the model "
        f"±{1e3 * half(without.model_m):.4f} mm and ±{1e3 * half(with_.model_m):.4f} mm, which no joint error reaches"
    )
    draw(given.figure, (8.0, 7.0), lambda figure: plot(figure, runs))
    verdict(missed)


if __name__ == "__main__":
    main()
