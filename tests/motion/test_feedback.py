"""Computed force: gains, delays, what is refused; the prediction and the margins against a continuous simulation."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace as changed

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism import dynamics, kinematics, posture
from controller.mechanism.drive import build_drives
from controller.mechanism.model import build, home_pose
from controller.motion import feedback
from controller.motion.feedforward import leg_demand
from controller.records import AxisMode, Estimate, Limit, Link, Mode, Reference, RequestKind, Sample
from controller.settings import load_machine, load_site
from controller.state import prepare
from tests.machines import MACHINES, SIMULATION, Bench, ask

PERIOD_S = 0.01
GIVEN = schema.Feedback()
NAMES = ("6-upru", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu")


def machine_and_drives(name):
    machine = load_machine(MACHINES / f"{name}.toml")[0]
    return machine, build(machine), build_drives(machine)


def law_of(name, **control):
    _, model, drives = machine_and_drives(name)
    return feedback.build_law(model, drives, schema.Control(law="force", **control), PERIOD_S)


def force_setup(**given):
    files = load_site(SIMULATION)
    control = changed(files.site.control, law="force", feedback=schema.Feedback(**given))
    return prepare(files.machine, changed(files.site, control=control))


def simulate(given, share, ticks, e0=1.0, load=0.0, step_s=1e-4):
    """One coordinate with this share of the assumed inertia, in small steps: e at the ticks.

    The force is what the PLC makes of the host's: a straight line from one to the next, a delay late.
    """
    pose, rate, integral_gain = feedback.gains(given)
    age = round(given.status_lead_s / step_s)
    delay = round(given.force_delay_s / step_s)
    per_tick = round(PERIOD_S / step_s)
    way, speed = feedback.under_way(PERIOD_S, given.status_lead_s + given.force_delay_s,
                                    given.status_lead_s + given.force_delay_s + PERIOD_S)  # fmt: skip
    horizon_s = given.status_lead_s + given.force_delay_s + PERIOD_S
    line = np.zeros(ticks * per_tick + per_tick + delay + 1)
    e, v, integral, before = e0, 0.0, 0.0, 0.0
    sent = np.zeros(feedback.UNDER_WAY)
    history, seen = [(e, v)] * (age + 1), []
    for tick in range(ticks):
        es, vs = history[-1 - age]
        seen.append(es)
        integral += integral_gain * PERIOD_S * es
        u = pose * (es + horizon_s * vs - way[1:] @ sent) + rate * (vs - speed[1:] @ sent)
        sent = np.array([u, *sent[:-1]])
        begin = tick * per_tick + delay
        line[begin : begin + per_tick + 1] = np.linspace(before, u + integral, per_tick + 1)
        before = u + integral
        for k in range(tick * per_tick, (tick + 1) * per_tick):
            a = load - 0.5 * (line[k] + line[k + 1]) / share
            e, v = e + step_s * v + 0.5 * step_s**2 * a, v + step_s * a
            history.append((e, v))
    return np.array(seen)


# ---------------------------------------------------------------- one coordinate


@pytest.mark.parametrize("share", [0.7, 1.0, 1.3])
def test_the_loop_dies_away_as_its_eigenvalue_says(share):
    e = np.abs(simulate(GIVEN, share, 400))
    radius = feedback._radius(GIVEN, PERIOD_S, GIVEN.status_lead_s + GIVEN.force_delay_s, share)
    late = np.arange(150, 400)
    envelope = np.array([e[k:].max() for k in late])
    found = math.exp(np.polyfit(late[envelope > 1e-13], np.log(envelope[envelope > 1e-13]), 1)[0])
    assert found == pytest.approx(radius, abs=0.01)


@pytest.mark.parametrize("bandwidth_1_s", [70.0, 95.0])
def test_the_eigenvalues_tell_where_it_becomes_unstable(bandwidth_1_s):
    given = changed(GIVEN, bandwidth_1_s=bandwidth_1_s)
    delay_s = given.status_lead_s + given.force_delay_s
    shares = np.linspace(0.2, 1.0, 81)
    limit = next(s for s in shares if feedback._radius(given, PERIOD_S, delay_s, s) < 1.0)
    assert limit > 0.25
    calm, wild = simulate(given, limit + 0.05, 600), simulate(given, limit - 0.05, 600)
    assert np.abs(calm[-50:]).max() < 0.1
    assert not np.abs(wild[-50:]).max() < 10.0


def test_a_lasting_load_leaves_no_error():
    e = simulate(GIVEN, 1.0, 400, e0=0.0, load=1.0)
    assert np.abs(e).max() < 3.0 / GIVEN.bandwidth_1_s**2
    assert abs(e[-1]) < 1e-5


def test_a_slower_loop_has_more_margin():
    nominal = changed(GIVEN, model_error=0.0)
    phase_rad = feedback.margin(nominal, PERIOD_S).phase_rad
    assert math.radians(35.0) < phase_rad < math.radians(70.0)
    slower = feedback.margin(changed(nominal, bandwidth_1_s=20.0), PERIOD_S).phase_rad
    assert slower > phase_rad


def test_the_margin_is_that_of_the_worst_inertia():
    margins = [feedback.margin(changed(GIVEN, model_error=error), PERIOD_S) for error in (0.0, 0.1, 0.2, 0.3, 0.5)]
    assert all(b.phase_rad < a.phase_rad for a, b in pairwise(margins))
    assert margins[3].share == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bandwidth_1_s": 70.0}, "bandwidth_1_s = 70"),
        ({"status_lead_s": 0.02, "force_delay_s": 0.008}, "phase margin"),
        ({"model_error": 0.7}, "within 70 %"),
        ({"integral_time_s": 0.03}, "integral_time_s = 0.03"),
        ({"status_lead_s": 0.02, "force_delay_s": 0.02}, "at most 30.0 ms"),
    ],
)
def test_gains_without_margin_are_refused_with_figures(given, words):
    with pytest.raises(ConfigurationError, match=words):
        force_setup(**given)


def test_the_law_of_position_has_none():
    _, model, drives = machine_and_drives("6-ups")
    assert feedback.build_law(model, drives, schema.Control(), PERIOD_S) is None


def test_forces_under_way_are_those_of_the_straight_lines():
    """Against the integral of the line that a PLC draws through random forces."""
    rng = np.random.default_rng(5)
    delay_s, h = 0.0063, 1e-5
    asked = rng.standard_normal(feedback.UNDER_WAY + 3)  # oldest first; the last is asked for now
    ticks = PERIOD_S * np.arange(-len(asked) + 1, 1) + PERIOD_S + delay_s  # when each is complete, after a measurement
    horizon_s = delay_s + PERIOD_S
    t = np.arange(0.0, horizon_s, h) + 0.5 * h
    line = np.interp(t, ticks, asked)
    way, speed = feedback.under_way(PERIOD_S, delay_s, horizon_s)
    newest_first = asked[::-1][: feedback.UNDER_WAY + 1]
    assert speed @ newest_first == pytest.approx(np.sum(line) * h, rel=1e-3, abs=1e-6)
    assert way @ newest_first == pytest.approx(np.sum(line * (horizon_s - t)) * h, rel=1e-3, abs=1e-8)


# ---------------------------------------------------------------- the machines


@pytest.mark.parametrize("name", NAMES)
def test_without_an_error_the_force_is_the_feed_forward(name):
    machine, model, drives = machine_and_drives(name)
    law, home = law_of(name), home_pose(machine)
    reference = Reference(home, np.zeros(6), np.zeros(6))
    legs = leg_demand(model, drives, reference, np.zeros(len(machine.leg)))
    measured = Estimate(home, np.zeros(6), 1, 0.0, 1.0)
    last = replace_forcing(feedback.OFF)
    force_n, after = feedback.computed_force(
        law, last, measured, 0.0025, reference, reference, PERIOD_S, legs.axis_n, legs, np.zeros(len(machine.leg))
    )
    assert force_n == pytest.approx(legs.axis_n, abs=1e-6)
    assert np.abs(after.integral).max() < 1e-12


def replace_forcing(off):
    return off._replace(forcing=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_forces_are_those_at_hand(name):
    """As far as the platform feels them: where legs outnumber freedoms, they may share otherwise."""
    machine, model, drives = machine_and_drives(name)
    law, home, n = law_of(name), home_pose(machine), len(machine.leg)
    reference = Reference(home, np.zeros(6), np.zeros(6))
    legs = leg_demand(model, drives, reference, np.zeros(n))
    size = np.abs(legs.axis_n).max()
    at_hand = legs.axis_n + 0.05 * size * np.random.default_rng(2).standard_normal(n)
    off = np.array([1e-4, -5e-5, 2e-5, 1e-4, 0.0, -1e-4])
    off[:3] *= machine.platform.kind == "free"
    measured = Estimate(home + feedback.free(model, home, off), np.zeros(6), 1, 0.0, 1.0)
    force_n, _ = feedback.computed_force(
        law, feedback.OFF, measured, 0.0025, reference, reference, PERIOD_S, at_hand, legs, np.zeros(n)
    )
    G, J = np.empty((6, 6)), np.empty((n, 6))
    posture.independent_motions(model, home, G)
    kinematics.jacobian(model, home, J)
    felt, wanted = G.T @ J.T @ force_n, G.T @ J.T @ at_hand
    assert felt == pytest.approx(wanted, abs=2e-3 * np.abs(G.T @ J.T @ legs.axis_n).max() + 1e-3 * size)


@pytest.mark.parametrize("name", NAMES)
def test_the_acceleration_is_the_same_in_every_free_coordinate(name):
    """The forces of an error, put into the mass matrix, give bandwidth² times the error: the model weights them."""
    machine, model, drives = machine_and_drives(name)
    law, home, n = law_of(name), home_pose(machine), len(machine.leg)
    reference = Reference(home, np.zeros(6), np.zeros(6))
    legs = leg_demand(model, drives, reference, np.zeros(n))
    S, T = feedback.speeds_of(model, home), feedback.twist_of(home)
    for direction in S.T:
        e = 1e-5 * direction
        measured = Estimate(home - e, np.zeros(6), 1, 0.0, 1.0)
        last = replace_forcing(feedback.OFF)
        force_n, after = feedback.computed_force(
            law, last, measured, 0.0, reference, reference, PERIOD_S, legs.axis_n, legs, np.zeros(n)
        )
        W = np.empty(6)
        dynamics.external_wrench(law.machine, home - e, np.zeros(6), np.zeros(6), force_n, W)
        A = T @ S
        M = A.T @ feedback.mass_matrix(law.machine, law.drives, home) @ A
        speeds = -np.linalg.solve(M, A.T @ W)
        assert S @ speeds == pytest.approx(after.integral + law.pose_1_s2 * e, abs=2e-2 * law.pose_1_s2 * 1e-5)


def test_friction_is_made_up_for_at_the_reference_not_at_the_measured_rate():
    machine, model, _ = machine_and_drives("6-ups")
    drives = build_drives(machine)
    drives[:, 2], drives[:, 3] = 7.0, 20.0
    law = feedback.build_law(model, drives, schema.Control(law="force"), PERIOD_S)
    home = home_pose(machine)
    still, up = np.zeros(6), np.array([0.0, 0.0, 0.1, 0.0, 0.0, 0.0])
    rates = []
    for measured_rate in (up, -up):
        reference = Reference(home, up, still)
        before = Reference(home - PERIOD_S * up, up, still)
        legs = leg_demand(model, drives, reference, np.zeros(6))
        bare = leg_demand(law.machine, law.drives, reference, np.zeros(6))
        measured = Estimate(home - PERIOD_S * up, measured_rate, 1, 0.0, 1.0)
        force_n, after = feedback.computed_force(
            law,
            replace_forcing(feedback.OFF),
            measured,
            0.0,
            reference,
            before,
            PERIOD_S,
            legs.axis_n,
            legs,
            np.zeros(6),
        )
        acting = after.sent[0] + after.integral
        seen = leg_demand(law.machine, law.drives, Reference(home, measured_rate, acting), np.zeros(6))
        rates.append(force_n - seen.axis_n)
        assert np.all(np.sign(legs.axis_n - bare.axis_n) == 1.0)
    assert rates[0] == pytest.approx(rates[1], abs=3.0)


def test_an_old_measurement_is_no_ground_for_feedback():
    machine, model, drives = machine_and_drives("6-upru")
    law, home = law_of("6-upru"), home_pose(machine)
    reference = Reference(home, np.zeros(6), np.zeros(6))
    legs = leg_demand(model, drives, reference, np.zeros(6))
    off = Estimate(home + 1e-3, np.zeros(6), 1, 0.0, 1.0)
    force_n, after = feedback.computed_force(
        law, replace_forcing(feedback.OFF), off, 0.03, reference, reference, PERIOD_S, legs.axis_n, legs, np.zeros(6)
    )
    assert force_n == pytest.approx(legs.axis_n, abs=1e-6)
    assert not after.sent.any()


@pytest.mark.parametrize("name", ["3-ups-s", "2-upr-2-rpu"])
def test_what_the_platform_cannot_do_is_asked_of_nobody(name):
    machine, model, _ = machine_and_drives(name)
    home = home_pose(machine)
    S = feedback.speeds_of(model, home)
    errors = np.random.default_rng(3).standard_normal((20, 6))
    kept = feedback.free(model, home, errors)
    assert kept == pytest.approx(feedback.free(model, home, kept), abs=1e-12)
    assert np.linalg.matrix_rank(kept, tol=1e-9) == 3
    assert (errors - kept) @ S == pytest.approx(np.zeros((20, 3)), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_poses_of_the_workspace_are_on_the_platforms_manifold(name):
    machine, model, drives = machine_and_drives(name)
    limits = machine.platform.limits
    corners = np.array([getattr(limits, key) for key in limits.__struct_fields__]).T
    for x in np.random.default_rng(8).uniform(corners[0], corners[1], (20, 6)):
        pose = feedback.on_platform(model, x)
        q, found, twist = np.empty(len(machine.leg)), np.empty(6), np.zeros(len(machine.leg))
        kinematics.axis_rates(model, pose, np.zeros(6), np.zeros(6), twist, q, np.empty_like(q), np.empty_like(q))
        if kinematics.forward(model, q, pose, twist.copy(), found) > 0:
            assert found == pytest.approx(pose, abs=1e-9)
    least, most = feedback.inertia_range(
        model, drives, corners, np.array([[0.1] * len(machine.leg), [9.0] * len(machine.leg)])
    )
    assert 0.0 < least < most
    assert drives[:, 1].min() <= least


# ---------------------------------------------------------------- in the cycle


def pressing(bench):
    """The bench's drives bear the machine, as the model has it."""
    zero = np.zeros(6)

    def bear(sample):
        pose = bench.state.x_guess
        legs = leg_demand(bench.setup.machine, bench.setup.drives, Reference(pose, zero, zero), np.zeros(6))
        return replace(sample, drive_n=legs.axis_n, age_s=0.0025)

    bench.broken = bear
    return bench


def test_forces_are_asked_for_once_the_drives_bear_the_machine():
    bench = Bench(force_setup())
    bench.ready()
    assert bench.outputs[-1].command.axis_mode is AxisMode.FOLLOW  # its drives show no force
    assert not bench.state.feedback.forcing
    pressing(bench)
    before = bench.outputs[-1].command.position_m
    output = bench.step()
    assert output.command.axis_mode is AxisMode.FORCE
    sample_n = bench.broken(_sample_of(bench)).drive_n
    assert output.command.force_n == pytest.approx(sample_n, abs=0.02 * np.abs(sample_n).max())
    assert output.command.position_m == pytest.approx(before, abs=1e-9)


def _sample_of(bench):
    q = bench.lengths_m
    return Sample(bench.tick, 0.0, Link.UP, 0.0, 0, 0, 0, 0, False, True, False, q, q, q, q)


def test_no_motion_starts_before_the_forces_do():
    bench = Bench(force_setup())
    bench.ready()
    target = bench.setup.home + np.array([0.01, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert bench.step(ask(RequestKind.MOVE, target)).verdict.name == "NOT_READY"
    pressing(bench).run(2)
    assert bench.step(ask(RequestKind.MOVE, target)).verdict.name == "ACCEPTED"
    assert bench.run(20).mode is Mode.ACTIVE
    assert bench.outputs[-1].command.axis_mode is AxisMode.FORCE


@pytest.mark.parametrize("kind", [RequestKind.OFF, RequestKind.STOP])
def test_a_machine_under_force_stops_and_goes_off(kind):
    bench = Bench(force_setup())
    bench.ready()
    pressing(bench).run(2)
    bench.step(ask(kind))
    bench.run(10)
    expected = AxisMode.STOP if kind is RequestKind.OFF else AxisMode.FORCE
    assert bench.outputs[-1].command.axis_mode is expected
    assert bench.state.feedback.forcing is (kind is RequestKind.STOP)


def test_the_integral_stands_still_while_the_guard_clamps():
    bench = Bench(force_setup())
    bench.ready()
    pressing(bench).run(2)
    limits = bench.setup.limits._replace(force_n=[1.0] * 6)
    bench.setup = bench.setup._replace(limits=limits)
    bear = bench.broken
    bench.broken = lambda sample: replace(bear(sample), drive_n=np.zeros(6))
    held = bench.state.feedback.integral
    for _ in range(5):
        bench.lengths_m = bench.lengths_m + 1e-4  # an error for the integral to take up
        output = bench.step()
        assert output.limits & Limit.FORCE
        assert np.abs(output.command.force_n).max() <= 1.0
        assert (bench.state.feedback.integral == held).all()
