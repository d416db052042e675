"""Events: what an operator is told, derived from two rows of the ring that follow each other. Pure."""

import functools
import math
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from typing import Any

import msgspec
import numpy as np

from controller.records import (
    POSE,
    SENSORS,
    Array,
    Fault,
    Limit,
    Link,
    Mode,
    Obstacle,
    Quality,
    Refusal,
    RequestKind,
    Verdict,
)  # fmt: skip
from controller.safety.faults import FAULTS
from controller.safety.supervisor import explain


class Event(msgspec.Struct, frozen=True):
    """Something an operator wants to know; `values` are the channels that show it, None where not finite."""

    t: float  # s, Unix time
    kind: str
    code: str
    text: str
    values: dict[str, float | None]
    who: str = ""  # asked for it, where it is a request
    source: str = ""  # by which way: page, shell, mqtt


REPEAT_S = 10.0

SENSED = tuple(f"{name}_quality" for name in SENSORS)
PUSHED = (*(f"wrench_{axis}" for axis in ("fx_n", "fy_n", "fz_n", "mx_nm", "my_nm", "mz_nm")), "residual_{i}_n")
# the channels that show a fault; {i} runs over the legs
CHANNELS: dict[Fault, tuple[str, ...]] = {
    Fault.LINK_LOST: ("link", "age_s"),
    Fault.STATUS_LATE: ("age_s",),
    Fault.STATUS_STALE: ("age_s",),
    Fault.PLC_FROZEN: ("plc_cycle",),
    Fault.PLC_STOPPED: ("plc_state", "plc_error"),
    Fault.DRIVE: ("drives_fault", "drives_enabled"),
    Fault.ENABLE_TIMEOUT: ("drives_enabled",),
    Fault.HOMING_FAILED: ("axes_homed", "plc_state", "plc_error"),
    Fault.POSE_UNKNOWN: ("fk_iterations", "fk_residual_m"),
    Fault.FOLLOWING_ERROR: ("following_error_{i}_m",),
    Fault.STROKE: ("length_{i}_m",),
    Fault.POSE: POSE,
    Fault.OVERSPEED: ("length_{i}_m_s",),
    Fault.OVERFORCE: ("drive_{i}_n", "cell_{i}_n"),
    Fault.SINGULAR: ("condition",),
    Fault.JOINT_ANGLE: ("reserve_swing", *POSE),
    Fault.SENSOR_DEGRADED: SENSED,
    Fault.SENSOR_LOST: SENSED,
    Fault.STREAM_LOST: ("stream_age_s", "stream_seq", "stream_host_s"),
    Fault.COLLISION: PUSHED,
    Fault.EXTERNAL_LOAD: PUSHED,
    Fault.CELL_SUSPECT: ("residual_{i}_n", "cell_{i}_n", "drive_{i}_n"),
    Fault.DRIVE_SUSPECT: ("residual_{i}_n", "cell_{i}_n", "drive_{i}_n"),
    Fault.OVERRUN: ("lateness_s", "cycle_s", "exchange_s", "skipped"),
}
LIMITS: dict[Limit, tuple[str, tuple[str, ...]]] = {
    Limit.STROKE: ("stroke of the legs", ("command_{i}_m",)),
    Limit.SPEED: ("speed of the legs", ("command_{i}_m_s",)),
    Limit.ACCELERATION: ("acceleration of the legs", ("command_{i}_m_s",)),
    Limit.FORCE: ("force of the legs", ("command_{i}_n",)),
    Limit.JERK: ("jerk of the legs", ("command_{i}_m_s",)),
    Limit.TORQUE: ("torque of the motors", ("command_{i}_n",)),
    Limit.POSE: ("pose of the platform", tuple(f"reference_{name}" for name in POSE)),
}
# column, its bits, what each means, what it is called when it goes and when it comes
_BIT_SETS = (
    (
        "faults",
        Fault,
        {str(fault.name): (row.meaning, CHANNELS.get(fault, ())) for fault, row in FAULTS.items()},
        (("fault_cleared", "is cleared"), ("fault_set", "is set")),
    ),
    (
        "limits",
        Limit,
        {str(limit.name): what for limit, what in LIMITS.items()},
        (("limit_left", "no longer acts"), ("limit_entered", "acts")),
    ),
)


class Flickering:
    """Channels that come and go between a number and none are told of now and then, the times between are counted."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}  # by channel: when last, how often not since

    def calmed(self, event: Event) -> Event | None:
        """The event as it is to be told; None if it was told a moment ago."""
        if event.kind != "not_finite":
            return event
        t, untold = self._told.get(event.code, (-math.inf, 0))
        if 0.0 <= event.t - t < REPEAT_S:
            self._told[event.code] = t, untold + 1
            return None
        self._told[event.code] = event.t, 0
        more = f" {untold} more times since it was last told." if untold else ""
        return msgspec.structs.replace(event, text=event.text + more)


def whole(value: float) -> int:
    """A code or a bit set; 0 for what is none: one bad number must not stop the gateway."""
    return int(value) if 0.0 < value < 2.0**53 else 0


def unix_s(started_unix_s: float, t_s: float) -> float:
    """Unix time of a row; the start of the session for a time stamp that cannot be."""
    return started_unix_s + (t_s if 0.0 <= t_s < 1e9 else 0.0)


def now_t(meta: Mapping[str, Any]) -> float:
    """Unix time of this moment by the clock pair of a session: a step of the wall clock tears nothing apart."""
    return unix_s(meta["started_unix_s"], time.monotonic() - meta["started_monotonic_s"])


def code_name(kind: type[IntEnum] | type[IntFlag], value: float) -> str:
    """The name of a code or of a single bit, its number where it has none."""
    number = whole(value)
    return next((str(member.name) for member in kind if member.value == number), str(number))


def _changed(kind: type[IntFlag], before: float, now: float) -> list[tuple[str, bool]]:
    """The names of the bits that differ, each with whether it is set now."""
    new, changed = whole(now), whole(before) ^ whole(now)
    return [(code_name(kind, 1 << k), bool(new >> k & 1)) for k in range(changed.bit_length()) if changed >> k & 1]


@functools.cache
def _watched(columns: tuple[str, ...]) -> tuple[list[str], list[int], int]:
    """Columns with codes; where those are whose change is an event; and where it says that a request was answered."""
    coded = [name for name in columns if name in ("link", "mode", "faults", "limits") or name.endswith("_quality")]
    return coded, [columns.index(name) for name in (*coded, "skipped")], columns.index("answer_id")


def _reason(now: Mapping[str, float]) -> str:
    """Why the request answered in this row is refused."""
    try:
        refusal = Refusal(Obstacle(now["refusal"]), int(now["refusal_which"]), now["refusal_excess"])
        return explain(Verdict(now["verdict"]), RequestKind(now["request_kind"]), refusal)
    except (ValueError, IndexError, OverflowError):
        return "its meaning is not known here"


def events(
    previous: Array | None, row: Array, columns: Sequence[str], *, started_unix_s: float = 0.0, lost: int = 0
) -> list[Event]:
    """What changed from one row to the next, both (len(columns),); `previous` is None at the start of a session.

    `lost` is how many rows are missing in between; Unix time (s) is started_unix_s + t_s.
    """
    coded, told, answer = _watched(tuple(columns))
    same = previous is not None and not lost and bool((row[told] == previous[told]).all())
    if same and not row[answer] and np.isfinite(row).all():
        return []  # as a rule nothing has happened, which takes a look at a few columns
    now = dict(zip(columns, row.tolist(), strict=True))
    before = {} if previous is None else dict(zip(columns, previous.tolist(), strict=True))
    t = unix_s(started_unix_s, now["t_s"])
    # a code that is no number says nothing: what it said before stands, and the channel is named at the end
    stood = {name: before[name] for name in coded if before and math.isfinite(before[name])}
    said = {name: now[name] if math.isfinite(now[name]) else stood.get(name) for name in coded}
    found: list[Event] = []

    def add(kind: str, code: str, text: str, names: Sequence[str] = ()) -> None:
        wanted = [name.format(i=i) for name in names for i in (range(1, 13) if "{i}" in name else (0,))]
        values = {name: now[name] if math.isfinite(now[name]) else None for name in wanted if name in now}
        found.append(Event(t, kind, code, text[0].upper() + text[1:] + ".", values))

    if lost:
        add("rows_lost", str(lost), f"{lost} samples are lost: the gateway came too late for them", ("tick",))
    # a single late answer is no event: STATUS_LATE is
    if said["link"] is not None:
        link = "DOWN" if whole(said["link"]) == Link.DOWN else "UP"
        if "link" not in stood or (link == "DOWN") != (whole(stood["link"]) == Link.DOWN):
            add("link", link, f"the link to the PLC is {link.lower()}", ("link", "age_s"))
    if said["mode"] is not None:
        mode, old_mode = code_name(Mode, said["mode"]), code_name(Mode, stood["mode"]) if "mode" in stood else None
        if mode != old_mode:
            add("mode", mode, f"the mode is {mode}" + (f" after {old_mode}" if old_mode else ""), ("mode",))
    for column, value in said.items():
        if column.endswith("_quality") and value is not None and column in stood:
            if (value == Quality.GOOD) == (stood[column] == Quality.GOOD):
                continue
            name, quality = column.removesuffix("_quality"), code_name(Quality, value)
            shown = [other for other in now if other.startswith(f"{name}_")]
            add("sensor", name, f"the value of {name} is {quality}", shown)
    for column, kind, meanings, words in _BIT_SETS:
        for name, is_set in _changed(kind, stood.get(column, 0.0), said[column] or 0.0):
            meaning, channels = meanings.get(name, ("its meaning is not known here", ()))
            what, verb = words[is_set]
            add(what, name, f"{kind.__name__} {name} {verb} ({meaning})", channels)
    if whole(now["answer_id"]):
        request, verdict = code_name(RequestKind, now["request_kind"]), code_name(Verdict, now["verdict"])
        answer = "is accepted" if verdict == Verdict.ACCEPTED.name else f"is refused ({_reason(now)})"
        text = f"request {whole(now['answer_id'])} ({request}) {answer}"
        refused = ("refusal", "refusal_which", "refusal_excess") if verdict == Verdict.UNREACHABLE.name else ()
        add("request", verdict, text, ("answer_id", "request_kind", "verdict", *refused))
    if before and (missed := whole(now["skipped"] - before["skipped"])):
        text = f"the control loop was late and skipped {missed} deadlines"
        add("deadlines_skipped", str(missed), text, ("skipped", "lateness_s", "cycle_s", "exchange_s"))
    if not np.isfinite(row).all():
        odd = [name for name, value in now.items() if not math.isfinite(value) and math.isfinite(before.get(name, 0.0))]
        if odd:
            more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
            add("not_finite", odd[0], f"no finite number any more in {', '.join(odd[:5])}{more}", odd)
    return found
