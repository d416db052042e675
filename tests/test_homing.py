"""Homing as the controller sees it: on the bench, with the real plant on a stepped clock, and in a whole system."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest

from controller import schema
from controller.commands.check import report
from controller.cycle import cycle
from controller.errors import ConfigurationError
from controller.lint.homing import walk
from controller.mechanism import kinematics, posture
from controller.motion.homing import find_pose
from controller.records import (
    AxisMode,
    Command,
    Fault,
    Link,
    Mode,
    Output,
    Request,
    RequestKind,
    Sample,
    Timing,
    Verdict,
    channels,
    pack,
    unpack_inputs,
)  # fmt: skip
from controller.safety.homing import ABOUT_LENGTHS, Search, judge_homing
from controller.settings import load_machine, load_site
from controller.state import initial_state, prepare
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, DriveStatus, PlcState
from drivers.virtual.cx5130 import Cx5130
from drivers.virtual.plant import Plant
from tests.machines import MACHINES, NOTHING, SIMULATION, Bench, ask, own_site, simulation_setup

FILES = load_site(SIMULATION)
HOMING = schema.Homing(method="reference", length_m=0.92, speed_m_s=0.02, travel_m=0.03, timeout_s=4.0)
TARGET = np.array([0.02, -0.01, 0.86, 0.05, 0.02, 0.0])


class World:
    """Controller, PLC, drives and plant on one stepped clock; the encoders are not homed."""

    def __init__(self, homing: schema.Homing = HOMING) -> None:
        site = msgspec.structs.replace(FILES.site, sensors={}, devices={}, homing=homing)
        self.setup = prepare(FILES.machine, site)
        self.plant = Plant(FILES.machine, msgspec.structs.replace(site.virtual_cell, homed=False))
        self.cx = Cx5130(site.ads, FILES.machine, self.plant, 0.002, None, homing)
        self.command, self.status = (
            np.frombuffer(symbol.data, dtype)[0]
            for symbol, dtype in zip(self.cx.device.symbols, (COMMAND, STATUS), strict=True)
        )
        self.state = initial_state(self.setup)
        self.tick, self.link = 0, Link.UP
        self.known, self.age_s = self.status.copy(), 0.01
        self.outputs: list[Output] = []
        self.rows: list[np.ndarray] = []

    def step(self, request: Request = NOTHING) -> Output:
        self.tick += 1
        status = self.known
        drives = status["drive_status"]
        sample = Sample(
            tick=self.tick, t_s=0.01 * self.tick, link=self.link, age_s=self.age_s, plc_cycle=int(status["plc_cycle"]),
            seq_echo=int(status["seq_echo"]), plc_state=int(status["plc_state"]), plc_error=int(status["plc_error"]),
            plc_stopped=bool(status["plc_state"] == PlcState.QUICK_STOP),
            drives_enabled=bool((drives & DriveStatus.ENABLED).all()),
            drives_fault=bool((drives & DriveStatus.FAULT).any()), length_m=status["position_m"].copy(),
            length_m_s=status["velocity_m_s"].copy(), setpoint_m=status["setpoint_m"].copy(),
            drive_n=status["force_n"].copy(), axes_homed=bool((drives & DriveStatus.HOMED).all()),
        )  # fmt: skip
        self.state, output = cycle(self.setup, self.state, sample, request)
        self.rows.append(packed(sample, request, output))
        if self.link is Link.UP:
            self._send(output.command)
            self.known, self.age_s = self.status.copy(), 0.01
        else:
            self.age_s += 0.01
        for _ in range(5):
            self.cx.cycle()
        self.outputs.append(output)
        return output

    def _send(self, command: Command) -> None:
        block = self.command
        block["size"], block["version"], block["seq"] = COMMAND.itemsize, LAYOUT_VERSION, command.seq
        block["mode"], block["host_time_s"], block["period_s"] = command.axis_mode, 0.01 * self.tick, 0.01
        block["velocity_feedforward"] = 1.0
        block["position_m"], block["velocity_m_s"] = command.position_m, command.velocity_m_s
        block["force_n"] = command.force_n

    def until(self, mode: Mode, most: int = 700) -> Output:
        for _ in range(most):
            output = self.step()
            if output.mode is mode:
                return output
        raise AssertionError(f"{output.mode.name} instead of {mode.name}, faults {output.faults!r}")

    def run(self, ticks: int) -> Output:
        for _ in range(ticks):
            output = self.step()
        return output


def packed(sample: Sample, request: Request, output: Output) -> np.ndarray:
    row = np.empty(len(channels(6)))
    pack(row, sample, request, output, Timing(0.0, 0.0, 0.0, 0, 0))
    return row


def test_homing_is_replayed_bit_for_bit():
    world = World()
    world.run(3)
    world.step(ask(RequestKind.HOME))
    world.until(Mode.READY)
    world.run(30)
    world.step(ask(RequestKind.MOVE, TARGET))
    world.run(30)
    state = initial_state(world.setup)
    for row in world.rows:
        sample, request = unpack_inputs(row, 6)
        state, output = cycle(world.setup, state, sample, request)
        assert packed(sample, request, output).tobytes() == row.tobytes()


def test_nothing_is_believed_before_and_all_is_known_after():
    world = World()
    for _ in range(5):
        output = world.step()
        assert output.faults == Fault.NONE  # although the lengths are off by centimetres
        assert np.isnan(output.estimate.pose).all() and np.isnan(output.reserves[0])
    assert world.step(ask(RequestKind.READY)).verdict is Verdict.NOT_HOMED
    assert world.step(ask(RequestKind.MOVE, TARGET)).verdict is Verdict.WRONG_MODE
    output = world.step(ask(RequestKind.HOME))
    assert (output.verdict, output.mode, output.command.axis_mode) == (Verdict.ACCEPTED, Mode.HOMING, AxisMode.HOME)
    output = world.until(Mode.READY)
    assert output.faults == Fault.NONE
    assert np.abs(output.estimate.pose - world.plant.pose()).max() < 1e-3  # the plant is not the machine of the file
    found_m = world.known["position_m"] - world.plant.axis_m
    assert np.abs(found_m).max() < 2e-4
    world.run(50)
    assert world.step(ask(RequestKind.MOVE, TARGET)).verdict is Verdict.ACCEPTED
    world.until(Mode.READY)
    world.run(50)
    assert np.abs(world.plant.pose() - TARGET)[:3].max() < 1e-3
    assert all(not output.faults for output in world.outputs)


def test_it_comes_to_hold_without_a_step():
    world = World()
    world.step(ask(RequestKind.HOME))
    fed_m, forces_n = [], []
    world.until(Mode.READY)
    for _ in range(40):
        fed_m.append(world.cx.twin.p.copy())
        forces_n.append(world.cx.drives.force_n.copy())
        world.step()
    assert np.abs(np.diff(fed_m, axis=0)).max() < 2e-6  # the set-point the drives held is the one that is followed
    assert world.outputs[-1].command.axis_mode is AxisMode.FOLLOW
    # what changes is the force: the model's feed-forward takes over from the drives' integrals, within a few newtons
    assert np.abs(np.diff(forces_n, axis=0)).max() < 250.0


def test_homing_again_waits_for_the_new_search():
    world = World()
    world.step(ask(RequestKind.HOME))
    world.until(Mode.READY)
    world.run(20)
    pose = world.outputs[-1].estimate.pose
    world.step(ask(RequestKind.OFF))
    world.until(Mode.OFF)
    world.step(ask(RequestKind.HOME))
    ticks = len(world.outputs)
    world.until(Mode.READY)
    assert len(world.outputs) - ticks > 100  # not by what the PLC said of the first one
    world.run(20)
    assert np.abs(world.outputs[-1].estimate.pose - pose).max() < 1e-5


@pytest.mark.parametrize("kind", [RequestKind.STOP, RequestKind.OFF])
@pytest.mark.parametrize("ticks", [1, 10, 18, 40, 90])
def test_stop_and_off_end_it_and_home_nothing(kind, ticks):
    world = World()
    world.step(ask(RequestKind.HOME))
    world.run(ticks)
    output = world.step(ask(kind))
    assert (output.mode, output.command.axis_mode) == (Mode.OFF, AxisMode.STOP)
    world.run(20)
    assert world.outputs[-1].faults == Fault.NONE
    assert np.abs(world.plant.velocity_m_s).max() < 1e-3
    assert world.step(ask(RequestKind.READY)).verdict is Verdict.NOT_HOMED


def test_a_failing_leg_is_a_fault_and_after_acknowledge_it_can_be_tried_again():
    world = World()
    world.cx.references.missing[5] = True
    world.step(ask(RequestKind.HOME))
    output = world.until(Mode.FAULT)
    assert Fault.HOMING_FAILED in output.faults
    assert output.command.axis_mode is AxisMode.STOP
    world.run(30)
    assert world.step(ask(RequestKind.ACKNOWLEDGE)).mode is Mode.OFF
    assert world.step(ask(RequestKind.READY)).verdict is Verdict.NOT_HOMED
    assert world.step(ask(RequestKind.HOME)).verdict is Verdict.ACCEPTED


def test_a_lost_link_while_homing_is_a_trip_and_homes_nothing():
    world = World()
    world.step(ask(RequestKind.HOME))
    world.run(50)
    world.link = Link.DOWN
    output = world.run(2)
    assert output.mode is Mode.FAULT and Fault.LINK_LOST in output.faults
    world.run(60)
    assert np.abs(world.plant.velocity_m_s).max() < 1e-3
    assert not world.cx.twin.homed
    world.link = Link.UP
    world.run(20)
    assert world.outputs[-1].mode is Mode.FAULT  # it waits for the operator
    assert world.step(ask(RequestKind.ACKNOWLEDGE)).mode is Mode.OFF
    world.run(20)
    assert world.step(ask(RequestKind.HOME)).verdict is Verdict.ACCEPTED
    world.until(Mode.READY)


def test_axes_that_lose_their_reference_in_motion_trip():
    bench = Bench()
    bench.ready()
    bench.broken = lambda sample: replace(sample, axes_homed=False)
    output = bench.step()
    assert output.mode is Mode.FAULT and Fault.HOMING_FAILED in output.faults
    assert output.command.axis_mode is AxisMode.STOP


def test_a_plc_that_never_comes_to_an_end_is_given_up():
    setup = simulation_setup()
    bench = Bench(setup)
    bench.broken = lambda sample: replace(sample, axes_homed=False)
    bench.step(ask(RequestKind.HOME))
    ticks = round(setup.homing_most_s / setup.period_s)
    assert bench.run(ticks - 2).mode is Mode.HOMING
    assert bench.run(5).mode is Mode.FAULT
    assert Fault.HOMING_FAILED in bench.outputs[-1].faults


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_with_every_word_of_the_plc(mode):
    """The rules that hold whatever the PLC says of its axes, its drives and the commands it has seen."""
    flags = [False, True]
    for homed, enabled, stopped, seen, late in product(*[flags] * 5):
        bench = Bench()
        first = 100
        bench.state = replace(
            bench.state, mode=mode, latched=mode in (Mode.READY, Mode.ACTIVE, Mode.STOPPING),
            search=Search(True, 1.0, first), command=replace(bench.state.command, seq=first + 5),
        )  # fmt: skip
        echo = first + 3 if seen else first - 1
        if late:
            bench.state = replace(bench.state, search=Search(True, 1e6, first))
        bench.broken = lambda s, h=homed, e=enabled, p=stopped, q=echo: replace(
            s, axes_homed=h, drives_enabled=e, plc_stopped=p, seq_echo=q
        )
        output = bench.step()
        failed = Fault.HOMING_FAILED in output.faults
        if mode is Mode.HOMING:
            assert failed == (stopped or late)
            assert (output.mode is Mode.FAULT) == failed
            if output.mode is Mode.READY:
                assert homed and enabled and seen
            elif not failed:
                assert output.mode is Mode.HOMING and not (homed and enabled and seen)
                assert output.command.axis_mode is AxisMode.HOME
        else:
            assert failed == (mode in (Mode.READY, Mode.ACTIVE, Mode.STOPPING) and not homed)
            assert output.mode is not Mode.HOMING
        if not homed:
            assert not output.faults & ABOUT_LENGTHS
            assert output.command.axis_mode is not AxisMode.FOLLOW
            assert np.isnan(output.estimate.pose).all()


def test_what_the_plc_said_before_it_saw_the_request_does_not_count():
    bench = Bench()
    sample = {}
    bench.broken = lambda s: sample.setdefault("first", s)
    bench.step()
    one = replace(sample["first"], axes_homed=True, drives_enabled=True, seq_echo=41)
    search, done, _ = judge_homing(Search(), Mode.HOMING, 42, one, 0.01, 9.0)
    assert not done
    search, done, _ = judge_homing(search, Mode.HOMING, 43, one, 0.01, 9.0)
    assert not done
    assert judge_homing(search, Mode.HOMING, 44, replace(one, seq_echo=42), 0.01, 9.0)[1]
    wrapped = Search(True, 1.0, (1 << 32) - 2)
    assert judge_homing(wrapped, Mode.HOMING, (1 << 32) + 1, replace(one, seq_echo=1), 0.01, 9.0)[1]
    assert not judge_homing(wrapped, Mode.HOMING, (1 << 32) + 1, replace(one, seq_echo=(1 << 32) - 3), 0.01, 9.0)[1]


def test_home_needs_the_link_and_off():
    bench = Bench()
    bench.broken = lambda s: replace(s, link=Link.DOWN)
    assert bench.step(ask(RequestKind.HOME)).verdict is Verdict.NO_LINK
    bench = Bench()
    bench.ready()
    assert bench.step(ask(RequestKind.HOME)).verdict is Verdict.WRONG_MODE


@pytest.mark.parametrize("name", ["6-upru", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu"])
def test_the_pose_is_found_from_home_wherever_the_legs_are(name):
    machine = load_machine(MACHINES / f"{name}.toml")[0]
    setup = prepare(machine, FILES.site)
    n, found = len(machine.leg), 0
    for pose in walk_poses(machine):
        q, qd, qdd, twist, twist_found = np.zeros((5, n))
        kinematics.axis_rates(setup.machine, pose, np.zeros(6), np.zeros(6), twist, q, qd, qdd)
        estimate = find_pose(setup.machine, q, np.zeros(n), setup.home, twist_found)
        if estimate.iterations > 0:
            assert posture.condition(setup.machine, pose) == pytest.approx(estimate.condition, rel=1e-3)
            assert np.abs(estimate.pose - pose).max() < 1e-6
            assert np.abs(twist_found - twist).max() < 1e-6
            found += 1
    assert found >= 40


def walk_poses(machine: schema.Machine) -> np.ndarray:
    from controller.lint.geometry import reachable_poses

    return reachable_poses(machine)[:60]


def test_lengths_that_belong_to_no_pose_are_unknown():
    setup = simulation_setup()
    for q in (np.full(6, 5.0), np.full(6, 1e300), np.array([0.2, 1.3, 0.2, 1.3, 0.2, 1.3])):
        estimate = find_pose(setup.machine, q, np.zeros(6), setup.home, np.zeros(6))
        assert estimate.iterations < 0
    machine = load_machine(MACHINES / "2-upr-2-rpu.toml")[0]
    setup = prepare(machine, FILES.site)
    q = np.empty(4)
    kinematics.leg_lengths(setup.machine, setup.home, q)
    assert find_pose(setup.machine, q, np.zeros(4), setup.home, np.zeros(4)).iterations > 0
    q[1] += 0.02  # four legs on three freedoms: one that is wrong by itself contradicts the others
    assert find_pose(setup.machine, q, np.zeros(4), setup.home, np.zeros(4)).iterations < 0


def test_an_unknown_pose_after_homing_trips_and_is_not_searched_from_somewhere_else():
    bench = Bench()
    bench.broken = lambda s: replace(s, axes_homed=False)
    bench.step(ask(RequestKind.HOME))
    far_m = bench.lengths_m * np.array([0.5, 1.6, 0.5, 1.6, 0.5, 1.6])
    bench.broken = lambda s: replace(s, length_m=far_m, setpoint_m=far_m, drives_enabled=True)
    output = bench.run(2)
    assert output.mode is Mode.FAULT and Fault.POSE_UNKNOWN in output.faults
    assert not bench.state.search.located


# ---------------------------------------------------------------- files and the check


def with_homing(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(f"{own_site(tmp_path)}\n[homing]\n{text}\n")
    return path


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('method = "force"', 'homing.length_m: this key is missing, method "force" needs it'),
        ('method = "reference"\nlength_m = [0.8, 0.8]', "homing.length_m: found 2 numbers, expected one, or 6"),
        ('method = "search"', "homing.method: found 'search'"),
        ('method = "reference"\nlength_m = -0.8', "homing.length_m: found -0.8"),
        ("speed = 1.0", "homing.speed: unknown key, did you mean speed_m_s?"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, text, sentence):
    with pytest.raises(ConfigurationError) as caught:
        load_site(with_homing(tmp_path, text))
    assert sentence in str(caught.value)


def test_the_check_says_how_far_the_platform_tilts_and_warns(tmp_path, capsys):
    good = 'method = "reference"\nlength_m = 0.80\n'
    assert report(with_homing(tmp_path, good), False, sys.stdout) == 0
    text = capsys.readouterr().out
    assert "homing reference: from 120 poses the platform is tilted by up to 26.4°, 2.6° more than at the start" in text
    assert "swings" not in text and "outside" not in text
    report(with_homing(tmp_path, good.replace("0.80", "0.76")), False, sys.stdout)
    assert "warning: homing.length_m: homing ends outside platform.limits.z_m" in capsys.readouterr().out
    report(with_homing(tmp_path, good + "force_n = 300.0"), False, sys.stdout)
    assert "300 N is no stop" in capsys.readouterr().out


def test_the_way_is_compared_with_the_swing_of_the_joints():
    machine = FILES.machine
    homing = schema.Homing(method="reference", length_m=0.80, force_n=1e4)
    assert not [problem for problem in walk(machine, homing).problems if "swings" in problem]
    tight = msgspec.structs.replace(machine.legs.limits, base_swing_rad=0.1)
    narrow = msgspec.structs.replace(machine, legs=msgspec.structs.replace(machine.legs, limits=tight))
    assert [problem for problem in walk(narrow, homing).problems if "swings" in problem]


# ---------------------------------------------------------------- the whole system


def test_the_whole_system_homes_gets_ready_and_moves(tmp_path):
    path = with_homing(tmp_path, 'method = "reference"\nlength_m = 0.92\nspeed_m_s = 0.03\ntravel_m = 0.04')
    path.write_text(path.read_text().replace("[virtual_cell] ", "[virtual_cell]\nhomed = false\n#"))
    assert "homed = false" in path.read_text()

    def pkm(*arguments: str) -> str:
        line = [sys.executable, "-m", "controller", "request", *arguments, "--site", str(path)]
        return subprocess.run(line, check=False, capture_output=True, text=True, timeout=30).stdout

    def wait(*arguments: str) -> str:
        end_s = time.monotonic() + 25.0
        while not (answer := pkm(*arguments)).startswith("ACCEPTED") and time.monotonic() < end_s:
            time.sleep(0.2)
        return answer

    line = [sys.executable, "-m", "controller", "run", str(path), "--json"]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log) as process:
        try:
            target = ["x_m=0", "y_m=0.01", "z_m=0.85", "yaw_rad=0", "pitch_rad=0.02", "roll_rad=0"]
            answers = [wait("stop"), pkm("ready"), pkm("home"), wait("move", *target), wait("off")]
        finally:
            process.terminate()
            printed, _ = process.communicate(timeout=60)
    told = (tmp_path / "log").read_text()
    assert [answer.split(":")[0] for answer in answers] == ["ACCEPTED", "NOT_HOMED", *["ACCEPTED"] * 3], told
    assert process.returncode == 0, told
    assert json.loads(printed)["faults"] == []
    assert "OFF → HOMING" in told and "HOMING → READY" in told and "READY → ACTIVE" in told
