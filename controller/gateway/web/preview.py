"""What a request would do, in words and seconds: judged from the newest row by the code the control process uses."""

import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.motion import trajectory
from controller.motion.trajectory import Along, Hold, Sine
from controller.records import (
    POSE,
    Array,
    AxisMode,
    Fault,
    Mode,
    Reference,
    Request,
    RequestKind,
    Verdict,
    channels,
    unpack_inputs,
)  # fmt: skip
from controller.requests import TARE_TICKS, plan_stop, take
from controller.safety.supervisor import explain
from controller.settings import parse
from controller.state import Rest, Setup, State, initial_state, prepare

POWERED = (AxisMode.FOLLOW, AxisMode.FORCE)


class Consequence(NamedTuple):
    """What would come of it."""

    text: str
    seconds: float | None  # until it is over; None where it has no end or nothing comes of it
    verdict: Verdict


class Planner:
    """Plans for one session at a time; slow the first time, when the kernels are loaded. Call it in a thread."""

    def __init__(self) -> None:
        self._known: tuple[str, Setup, schema.Site] | None = None
        self._alone = threading.Lock()

    def consequence(self, meta: Mapping[str, Any], row: Array, request: Request) -> Consequence:
        """What the request would do now; `meta` and the newest `row` (channels,) are those of the ring.

        Raises:
            ConfigurationError: the session is one of another version.
        """
        with self._alone:
            if self._known is None or self._known[0] != meta["session"]:
                self._known = meta["session"], *_setup(meta)
        _, setup, site = self._known
        return _judged(setup, site, row, request)


def _setup(meta: Mapping[str, Any]) -> tuple[Setup, schema.Site]:
    source = Path("ring")
    site = parse(str(meta["site_toml"]), schema.Site, source)
    machine = parse(str(meta["machine_toml"]), schema.Machine, source)
    known = channels(len(machine.leg), list(site.sensors), site.stream is not None)
    if [list(channel) for channel in known] != meta["channels"]:
        raise ConfigurationError("the control process is of another version than the gateway: there is no preview")
    return prepare(machine, site, meta.get("tracks")), site


def _judged(setup: Setup, site: schema.Site, row: Array, request: Request) -> Consequence:
    n, k = len(setup.limits.length_min_m), len(site.sensors)
    table = channels(n, list(site.sensors), site.stream is not None)
    now = dict(zip((channel.name for channel in table), row.tolist(), strict=True))
    sample, _ = unpack_inputs(row, n, k, site.stream is not None)
    state = _state(setup, now, sample.sensor)
    with np.errstate(all="ignore"):
        verdict, _, plan, refusal = take(setup, state, sample, request, Fault(int(now["faults"])))
        if verdict is not Verdict.ACCEPTED:
            return Consequence(f"It would be refused: {explain(verdict, request.kind, refusal)}.", None, verdict)
        now_s = state.tick * setup.period_s
        moving = state.mode in (Mode.ACTIVE, Mode.STOPPING)
        stopped_s = trajectory.end_s(plan_stop(setup, state.reference, now_s)) - now_s if moving else 0.0
    stop_s = max(stopped_s, 0.0) if math.isfinite(stopped_s) else 0.0
    seconds: float | None = None
    match request.kind:
        case RequestKind.MOVE:
            seconds = trajectory.end_s(plan) - now_s
            way = _way(state.reference.pose, request.pose)
            text = f"The platform {way}, to {_pose(request.pose)}, within {seconds:.1f} s."
        case RequestKind.SINE if isinstance(plan, Sine):
            text = (
                f"The platform swings about where it is, by {_amplitudes(request.pose)}, "
                f"{request.frequency_hz:g} times a second, until it is stopped."
            )
        case RequestKind.TRACK if isinstance(plan, Along):
            seconds = trajectory.end_s(plan) - now_s
            lead_s = plan.approach.end_s - now_s
            way = _way(state.reference.pose, trajectory.at(plan, plan.approach.end_s).pose)
            text = f"The platform {way} to where the track begins ({lead_s:.1f} s), then follows it: {seconds:.1f} s."
        case RequestKind.STREAM:
            text = "The platform follows the poses of the motion-base host until it is stopped or they stay away."
        case RequestKind.HOME:
            text = (
                f"The drives come on and look for their references: each leg may move by up to "
                f"{1e3 * site.homing.travel_m:.0f} mm, all of it takes at most {setup.homing_most_s:.0f} s."
            )
        case RequestKind.READY:
            text = "The drives come on, the brakes open, and the platform is held where it is."
        case RequestKind.STOP if state.mode is Mode.HOMING:
            text = "Homing is broken off, the drives go off."
        case RequestKind.STOP:
            seconds = stop_s
            text = (
                f"The platform comes to rest within {stop_s:.1f} s and is held there." if moving else "Nothing moves."
            )
        case RequestKind.OFF:
            seconds = stop_s
            rest = f"The platform comes to rest within {stop_s:.1f} s, then the" if moving else "The"
            text = f"{rest} drives go off and the brakes hold it."
        case RequestKind.ACKNOWLEDGE:
            text = "The latched fault is cleared; the drives stay off."
        case RequestKind.TARE:
            error_n = float(np.nanmax(np.abs(state.rest.error_n)))
            text = f"What the load cells read more than the model, at most {error_n:.1f} N, is taken for their zero."
        case _:
            text = "Nothing comes of it."
    return Consequence(text, seconds, verdict)


def _state(setup: Setup, now: Mapping[str, float], sensor: Array) -> State:
    """As much of the state as a row tells, which is all that a request is judged by."""

    def six(pattern: str) -> Array:
        return np.array([now[pattern.format(name)] for name in POSE])

    reference = Reference(six("reference_{}"), six("reference_{}_s"), six("reference_{}_s2"))
    axis_mode, start = AxisMode(int(now["command_axis_mode"])), initial_state(setup)
    error_n = np.full(len(setup.cells), np.nan)
    for leg, cell in enumerate(setup.cells):
        if cell >= 0:
            error_n[leg] = sensor[cell] - now[f"model_cell_{leg + 1}_n"]
    return replace(
        start,
        mode=Mode(int(now["mode"])),
        plan=Hold(reference.pose),
        reference=reference,
        tick=int(now["tick"]),
        latched=axis_mode in POWERED,
        rest=Rest(TARE_TICKS, error_n),
        feedback=start.feedback._replace(forcing=axis_mode is AxisMode.FORCE),
    )


def _way(start: Array, target: Array) -> str:
    """How far it is, in words."""
    far_m, turn_rad = float(np.linalg.norm(target[:3] - start[:3])), float(np.abs(target[3:] - start[3:]).max())
    parts = [f"moves {1e3 * far_m:.0f} mm"] if far_m >= 5e-4 else []
    parts += [f"turns up to {math.degrees(turn_rad):.1f}°"] if turn_rad >= 5e-4 else []
    return " and ".join(parts) or "stays where it is"


def _pose(pose: Array) -> str:
    x, y, z = 1e3 * pose[:3]
    yaw, pitch, roll = np.degrees(pose[3:])
    return f"x {x:.0f} y {y:.0f} z {z:.0f} mm, yaw {yaw:.1f} pitch {pitch:.1f} roll {roll:.1f}°"


def _amplitudes(pose: Array) -> str:
    parts = [
        f"{name.rpartition('_')[0]} {1e3 * value:.0f} mm" if name.endswith("_m") else
        f"{name.rpartition('_')[0]} {math.degrees(value):.1f}°"
        for name, value in zip(POSE, pose.tolist(), strict=True)
        if value
    ]  # fmt: skip
    return ", ".join(parts) or "nothing"
