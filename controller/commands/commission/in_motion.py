"""The steps that move the whole platform: homing, hold, check move, limits, stop, tracking."""

import time
from typing import Any

import numpy as np

from controller.commands.commission.walk import WATCHED_S, Outcome, Walk, rounded
from controller.commissioning.record import Trouble
from controller.commissioning.service import PATIENCE_S, Rows, Service
from controller.errors import RunError
from controller.mechanism.layout import RADIUS
from controller.motion import trajectory
from controller.records import POSE, Estimate, Mode, Output, Reference, Request, RequestKind, unpack_inputs
from controller.records import Verdict as Answer
from controller.requests import plan_stop
from controller.service.check_move import CheckMove
from controller.state import Setup
from drivers.fitting import fit

DRIFT_M = 2e-4  # of a leg that holds
STOP_ROOM, STOP_SHARE = 0.4, 0.2  # of room and speed, of the move that is stopped
STOP_S, STOP_WAY, STOP_WAY_M = 0.1, 0.1, 2e-3  # how much later and farther than planned
STANDS_M_S = 2e-3
SWING_ROOM, SWING_HZ, SWING_TURNS = 0.2, 0.4, 2
FOLLOWS = 0.1  # share of control.following_error_m
BEYOND = 0.1  # of its range, how far beyond it the coordinate lies that must be refused


def homing(walk: Walk) -> Outcome:
    """Homing, twice, and what the second changed."""
    method = walk.files.site.homing.method
    if method == "absolute":
        walk.say("the encoders are absolute: nothing to look for")
        return Outcome({"method": method}, [])
    most_s, moved_m = walk.setup.homing_most_s + 5.0, np.zeros(0)
    service = walk.service
    for _ in range(2):
        service.powered = True
        if service.mode() is not Mode.OFF:
            service.off()
        since = service.since()
        service.insist("home")
        service.until(lambda row: row["mode"][0] == Mode.HOMING, 5.0, "homing does not begin")
        service.until(lambda row: row["mode"][0] in (Mode.READY, Mode.OFF), most_s, "homing does not end")
        rows = since()
        found = np.flatnonzero(np.diff(rows["axes_homed"]) > 0.0)
        if not len(found):
            raise RunError("homing ended without its references")
        length_m = rows.legs("length_{}_m")
        moved_m = length_m[found[-1] + 1] - length_m[found[-1]]
    worst, limit_m = int(np.argmax(np.abs(moved_m))), walk.setup.control.start_tolerance_m
    findings = [
        Trouble(f"leg {k + 1} found its reference {1e3 * moved_m[k]:.2f} mm from the first time", "its mark or stop")
        for k in np.flatnonzero(np.abs(moved_m) > limit_m).tolist()
    ]
    return Outcome({"method": method, "worst_leg": worst + 1, "repeats_m": float(moved_m[worst])}, findings)


def hold(walk: Walk) -> Outcome:
    """Drives on: drift and lag of every leg."""
    service = walk.service
    service.ready()
    service.watch(WATCHED_S)  # a wrong model is off by what the drives take a moment to make up for
    rows = service.watch(WATCHED_S)
    length_m = rows.legs("length_{}_m")
    moved_m, lag_m = np.ptp(length_m, axis=0), np.abs(rows.legs("following_error_{}_m")).max(0)
    limit_m = walk.setup.control.start_tolerance_m
    findings = [
        Trouble(f"leg {k + 1} does not hold still: {1e3 * moved_m[k]:.2f} mm", "gains and brake of its drive")
        for k in np.flatnonzero(moved_m > DRIFT_M).tolist()
    ]
    findings += [
        Trouble(
            f"leg {k + 1} is {1e3 * lag_m[k]:.2f} mm off its set-point", "position loop and feed-forward of its drive"
        )
        for k in np.flatnonzero(lag_m > limit_m).tolist()
    ]
    return Outcome({"moved_m": float(moved_m.max()), "lag_m": float(lag_m.max())}, findings)


def check(walk: Walk) -> Outcome:
    """The check move, asked for over the gateway."""
    if not any(name.startswith(("cell_", "tilt_")) for name in walk.files.site.sensors):
        walk.say("neither load cells nor an inclinometer: nothing to compare")
        return Outcome({"sensors": 0}, [])
    service, setup = walk.service, walk.setup
    if service.mode() is Mode.READY:
        service.powered = True
        service.off()
    move = CheckMove(walk.files, fit(walk.files), setup)
    reader = move.watching(lambda sample, _: sample)
    operator, n, k = move.operator(), len(setup.cells), len(walk.files.site.sensors)
    service.powered = True
    request, verdict, asked_s = next(operator), Answer.NONE, 0.0
    while True:
        rows = service.latest()
        if Mode(int(rows["mode"][-1])) is Mode.FAULT:
            service.until(lambda _: True, 1.0, "the check move")
        reader(unpack_inputs(rows.rows[-1], n, k, walk.files.site.stream is not None)[0], 0.0)
        verdict = Answer.NONE
        if request.kind is not RequestKind.NONE:
            time.sleep(max(asked_s + 0.3 - time.monotonic(), 0.0))
            asked_s, verdict = time.monotonic(), _asked(service, request)
            rows = service.latest()
        try:
            request = operator.send(_output(rows, verdict))
        except StopIteration:
            break
    found = [
        Trouble(f"{item.sensor} {item.wrong}", "docs/how-to/calibrate-a-cell.md")
        for item in move.findings
        if item.wrong
    ]
    return Outcome(
        {item.sensor: f"offset {item.offset:.3g}, scale {item.scale:.4f}, {item.remark or 'correlation'}"
         f" {item.correlation:.4f}" for item in move.findings}, found
    )  # fmt: skip


def _asked(service: Service, request: Request) -> Answer:
    numbers: dict[str, Any] = {}
    if request.kind is RequestKind.MOVE:
        numbers = {"pose": dict(zip(POSE, request.pose.tolist(), strict=True)), "speed_share": request.speed_share}
    word, _ = service.request(request.kind.name.lower(), **numbers)
    return Answer[word] if word in Answer.__members__ else Answer.NOT_READY


def _output(rows: Rows, verdict: Answer) -> Output:
    """As much of what a tick decided as an operator made of code looks at."""
    legs = rows.legs("model_cell_{}_n")[-1]
    estimate = Estimate(rows.pose()[-1], rows.pose("", "_s")[-1], 1, 0.0, 1.0)
    blank: Any = None
    return Output(
        Mode(int(rows["mode"][-1])), blank, estimate, blank, legs, legs, legs, blank, legs, blank, blank, blank, legs,
        0, verdict, blank,
    )  # fmt: skip


def limits(walk: Walk) -> Outcome:
    """The table of limits is confirmed, and a pose beyond them refused."""
    service, limits, free = walk.service, walk.setup.limits, _free(walk.setup)
    walk.say("platform  " + "  ".join(
        f"{POSE[k]} {limits.pose_min[k]:.3g} … {limits.pose_max[k]:.3g}" for k in free
    ))  # fmt: skip
    for k in range(len(limits.length_min_m)):
        walk.say(
            f"leg {k + 1}     {limits.length_min_m[k]:.4f} … {limits.length_max_m[k]:.4f} m, "
            f"{limits.speed_m_s[k]:.3g} m/s, {limits.acceleration_m_s2[k]:.3g} m/s²"
        )
    walk.engineer.confirm("limits", "Are these the limits of this machine, with its mechanical ends outside of them?")
    service.ready()
    before, pose = service.latest().legs("setpoint_{}_m")[-1], service.latest().pose("reference_")[-1]
    pose[free[0]] = limits.pose_max[free[0]] + BEYOND * (limits.pose_max[free[0]] - limits.pose_min[free[0]])
    verdict, text = service.request("move", pose=dict(zip(POSE, pose.tolist(), strict=True)), speed_share=0.05)
    moved_m = float(np.abs(service.watch(0.3).legs("setpoint_{}_m")[-1] - before).max())
    findings: list[Trouble] = []
    if verdict != "UNREACHABLE" or moved_m > DRIFT_M:
        service.stop()
        found = f"a pose beyond the limits got the answer {verdict}, and {1e3 * moved_m:.1f} mm of motion"
        findings.append(Trouble(found, "do not move this machine; tell whoever maintains the program"))
    return Outcome({"answer": f"{verdict}: {text}", "moved_m": moved_m}, findings)


def stop(walk: Walk) -> Outcome:
    """Time and way of a stop beside its plan; then the emergency stop."""
    service, setup = walk.service, walk.setup
    service.ready()
    k, room = _roomiest(setup)
    start = service.latest().pose("reference_")[-1]
    target = start.copy()
    away = STOP_ROOM * room
    target[k] += away if target[k] + away < setup.home[k] + room else -away
    since = service.since()
    service.insist("move", pose=dict(zip(POSE, target.tolist(), strict=True)), speed_share=STOP_SHARE)
    service.until(
        lambda row: abs(row.pose("reference_")[0, k] - start[k]) > 0.4 * away,
        PATIENCE_S,
        "the move does not get under way",
    )
    service.request("stop")
    service.at_rest()
    service.watch(0.2)
    rows = since()
    asked = np.flatnonzero(rows["request_kind"] == RequestKind.STOP)
    if not len(asked):
        raise RunError("the stop never reached the control process")
    at = int(asked[-1]) - 1  # the last reference before
    begun = Reference(
        rows.pose("reference_")[at], rows.pose("reference_", "_s")[at], rows.pose("reference_", "_s2")[at]
    )
    plan = plan_stop(setup, begun, 0.0)
    planned_s = trajectory.end_s(plan)
    planned = float(trajectory.at(plan, planned_s).pose[k] - begun.pose[k])
    moving = np.abs(rows.legs("length_{}_m_s")).max(1) > STANDS_M_S
    last = int(np.flatnonzero(moving)[-1]) if moving.any() else at
    took_s = float(rows["t_s"][last] - rows["t_s"][at])
    went = float(rows.pose()[-1, k] - rows.pose()[at, k])
    arm_m = 1.0 if k < 3 else float(setup.machine.platform[RADIUS])
    findings: list[Trouble] = []
    if took_s > planned_s + STOP_S:
        findings.append(Trouble(f"the stop took {took_s:.2f} s, planned {planned_s:.2f} s", "drives' gains; the link"))
    if abs(abs(went) - abs(planned)) * arm_m > STOP_WAY * abs(planned) * arm_m + STOP_WAY_M:
        found = f"the stop took {1e3 * abs(went) * arm_m:.1f} mm, planned {1e3 * abs(planned) * arm_m:.1f} mm"
        findings.append(Trouble(found, "drives' gains, and their velocity feed-forward"))
    figures = {"coordinate": POSE[k], "took_s": took_s, "planned_s": planned_s, "way": went, "planned_way": planned}
    walk.engineer.confirm(
        "estop", "The drives hold. Press the emergency stop, and release it: did all drives go off by wire?"
    )
    if service.mode() is Mode.FAULT:
        service.request("acknowledge")
    return Outcome(figures, findings)


def tracking(walk: Walk) -> Outcome:
    """Following error in a slow sine."""
    service, setup = walk.service, walk.setup
    service.ready()
    k, room = _roomiest(setup)
    if reason := service.move(setup.home, STOP_SHARE):
        raise RunError(f"the move home is refused: {reason}")
    service.insist("sine", pose={POSE[k]: SWING_ROOM * room}, frequency_hz=SWING_HZ)
    service.watch(trajectory.RAMP_S)
    rows = service.watch(SWING_TURNS / SWING_HZ)
    service.insist("stop")
    service.at_rest()
    if (rows["mode"] != Mode.ACTIVE).any():
        raise RunError("the sine was stopped on its way: see the faults of the service")
    lag_m = rows.legs("following_error_{}_m")
    peak_m, rms_m = np.abs(lag_m).max(0), np.sqrt(np.mean(lag_m**2, 0))
    limit_m = FOLLOWS * setup.control.following_error_m
    findings = [
        Trouble(f"leg {leg + 1} lags up to {1e3 * peak_m[leg]:.2f} mm in a slow sine, expected {1e3 * limit_m:.2f} mm",
                "gains and feed-forward of its drive: docs/how-to/tune.md")
        for leg in np.flatnonzero(peak_m > limit_m).tolist()
    ]  # fmt: skip
    return Outcome({"coordinate": POSE[k], "peak_m": rounded(peak_m, 6), "rms_m": rounded(rms_m, 6)}, findings)


def _free(setup: Setup) -> list[int]:
    return np.flatnonzero(trajectory.FREE[int(setup.machine.platform[0])]).tolist()


def _roomiest(setup: Setup) -> tuple[int, float]:
    """The free coordinate with most room about home, a length where there is one, and that room."""
    limits, free = setup.limits, _free(setup)
    free = [k for k in free if k < 3] or free
    room = [min(limits.pose_max[k] - setup.home[k], setup.home[k] - limits.pose_min[k]) for k in free]
    best = int(np.argmax(room))
    return free[best], room[best]
