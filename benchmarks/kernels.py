"""Cost of the kernels and of one cycle, beside Pinocchio's rnea on the same mechanism, all in one run.

    python -m benchmarks.kernels

Milliseconds differ from machine to machine: read the ratios.
"""

import statistics
import time
import tomllib
from collections.abc import Callable

import numpy as np

from controller.cycle import cycle
from controller.mechanism import dynamics, kinematics, posture
from controller.mechanism.model import build, home_pose
from controller.records import RequestKind, Timing, channels, pack
from controller.settings import load_machine
from tests.machines import CELLS, MACHINES, NOTHING, Bench, ask
from tests.oracles import pinocchio_tree as oracle

ROUNDS = 15
PATH = MACHINES / "6-upru.toml"


def microseconds(call: Callable[[], object], calls: int, states: int = 1) -> float:
    """Median over rounds of the time of one call, divided by the states it treats."""
    rounds: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - begin) / calls / states)
    return 1e6 * statistics.median(rounds)


def main() -> None:
    machine, _ = load_machine(PATH)
    model, home = build(machine), home_pose(machine)
    rng = np.random.default_rng(1)
    states = 1000
    x = home + rng.uniform(-0.1, 0.1, (states, 6))
    xd, xdd, wrench = rng.normal(0, 0.3, (states, 6)), rng.normal(0, 1, (states, 6)), np.zeros((states, 6))
    f, f_cell, q, qd, qdd = np.empty((5, states, 6))
    found, J = np.empty(6), np.empty((6, 6))
    kinematics.leg_lengths(model, x[1], q[1])
    near, twist = x[1] + 0.002, np.zeros(6)

    tree = oracle.build_oracle(oracle.machine_from_toml(tomllib.loads(PATH.read_text())), cells=False)
    position, velocity, acceleration = oracle.solve_state(tree, x[0], xd[0], xdd[0])

    bench = Bench()
    bench.ready()
    bench.step(ask(RequestKind.SINE, 0.05 * np.ones(6), frequency_hz=0.3))
    bench.run(150)
    row = np.empty(len(channels(6, CELLS)))
    samples = []
    bench.broken = lambda sample: samples.append(sample) or sample
    bench.run(1)
    state, sample = bench.state, samples[-1]

    def whole_cycle() -> None:
        _, output = cycle(bench.setup, state, sample, NOTHING)
        pack(row, sample, NOTHING, output, Timing(0.0, 0.0, 0.0, 0, 0))

    one = (model, x[0], xd[0], xdd[0], wrench[0], f[0], f_cell[0])
    peer = "Pinocchio rnea, spanning tree, one call"
    calls: dict[str, tuple[Callable[[], object], int, int]] = {  # what, how often a round, states it treats
        peer: (lambda: oracle.rnea_only(tree, position, velocity, acceleration), 2000, 1),
        "Pinocchio rnea with closure solved (oracle, Python)": (
            lambda: oracle.inverse_dynamics(tree, x[0], xd[0], xdd[0], wrench[0]), 10, 1,
        ),
        "leg_lengths, one call": (lambda: kinematics.leg_lengths(model, x[0], q[0]), 5000, 1),
        "jacobian, one call": (lambda: kinematics.jacobian(model, x[0], J), 5000, 1),
        "forward, from 2 mm off, one call": (lambda: kinematics.forward(model, q[1], near, twist, found), 3000, 1),
        "leg_rates, batch, a state": (
            lambda: kinematics.leg_rates_batch(model, x, xd, xdd, q, qd, qdd), 5, states,
        ),
        "inverse_dynamics, one call": (lambda: dynamics.inverse_dynamics(*one), 5000, 1),
        "inverse_dynamics, batch, a state": (
            lambda: dynamics.inverse_dynamics_batch(model, x, xd, xdd, wrench, f, f_cell), 5, states,
        ),
        "condition, one call": (lambda: posture.condition(model, x[0]), 500, 1),
        "cycle() and packing its row": (whole_cycle, 300, 1),
    }  # fmt: skip
    figures = {name: microseconds(*call) for name, call in calls.items()}
    print(f"{'6-UPRU, median of ' + str(ROUNDS) + ' rounds':<54} {'µs':>8}  {'/ rnea':>8}")
    for name, value in figures.items():
        print(f"{name:<54} {value:8.2f}  {value / figures[peer]:8.3f}")
    print(f"cycle() takes {figures['cycle() and packing its row'] / 100:.2f} % of a 10 ms tick")


if __name__ == "__main__":
    main()
