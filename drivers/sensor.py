"""What all sensor drivers share: the reading they leave in the mailbox, and device profiles, which are data.

A profile (config/devices/*.toml) says how a kind of instrument speaks and what of it may be believed; where one is
plugged in is the business of the site. `scale` and `offset` turn the raw number into `unit`, an SI symbol:
value = sign * raw * scale + offset, and a value outside `range` is refused as implausible.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from controller.errors import ConfigurationError
from controller.schema import NonNegative, Port, Positive, Range, Table
from controller.settings import parse


class Quality(IntEnum):
    """What a reading is worth."""

    NONE = 0  # there never was a valid value
    BAD = 1  # the device itself, or the plausible range, says that it does not measure now
    HELD = 2  # an old value: the device or the line gives no new one
    GOOD = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest valid value of a channel and when it was asked for; quality and message are of now.

    A driver that hangs leaves GOOD standing: whoever uses the value looks at `age_s` too.
    """

    value: float = math.nan
    unit: str = ""
    stamp_s: float = -math.inf  # host monotonic time
    quality: Quality = Quality.NONE
    message: str = "not read yet"  # why the quality is not GOOD, for the operator; empty when it is

    def age_s(self, now_s: float) -> float:
        """Age of the value at monotonic time now_s, s; infinite when there is none."""
        return now_s - self.stamp_s

    def held(self, message: str) -> "Reading":
        """The same value when no new one came."""
        quality = Quality.HELD if math.isfinite(self.value) else Quality.NONE
        return Reading(self.value, self.unit, self.stamp_s, quality, message)

    def bad(self, message: str) -> "Reading":
        """The same value when the device says that it does not measure."""
        return Reading(self.value, self.unit, self.stamp_s, Quality.BAD, message)


# ---------------------------------------------------------------- profiles

Bit = Annotated[int, Meta(ge=0, le=15)]
Address = Annotated[int, Meta(ge=0, le=65535)]
ShortTime = Annotated[float, Meta(gt=0.0, le=0.1)]
DeviceName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]*$")]


class StatusBit(Table, frozen=True):
    """A bit of a status word that makes the values worthless while it is set."""

    bit: Bit
    message: str


class StatusWord(Table, frozen=True):
    """A 16 bit status register in the same block as the values."""

    address: Address
    bad: list[StatusBit]


class Register(Table, frozen=True, kw_only=True):
    """One channel of a Modbus device; the type says how many registers it takes.

    `order` names the bytes as they arrive: A is the most significant byte of the number.
    """

    address: Address  # as on the wire, counted from 0
    type: Literal["int16", "uint16", "int32", "uint32", "float32"]
    order: Literal["ABCD", "CDAB", "BADC", "DCBA"] = "ABCD"
    scale: float
    offset: float = 0.0
    unit: str
    range: Range
    sign_bit: Bit | None = None  # the number is a magnitude, negative when this bit of the status word is set


class Expected(Table, frozen=True):
    """A register that must hold a value for the profile to be right, such as the resolution set in the device."""

    address: Address
    value: Address
    message: str


class ModbusProfile(Table, frozen=True, kw_only=True):
    """A Modbus instrument. All channels come from one request, so that values and status belong together."""

    name: DeviceName
    title: str = ""
    source: str
    verified: bool  # against the real device
    function: Literal[3, 4] = 3
    unit_id: Annotated[int, Meta(ge=1, le=247)] = 1
    slowest_answer_s: Annotated[float, Meta(gt=0.0, le=2.0)]  # the line is drained this long after a time-out
    channels: dict[str, Register]
    status: StatusWord | None = None
    expect: tuple[Expected, ...] = ()


class TcpLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="tcp"):
    """Modbus TCP, a gateway to several units included."""

    host: str
    port: Port = 502
    timeout_s: ShortTime = 0.1


class RtuLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="rtu"):
    """Modbus RTU; `path` below /dev/serial/by-id, because the short names change when an adapter is plugged again."""

    path: str
    baudrate: Annotated[int, Meta(ge=1200, le=1000000)] = 38400
    parity: Literal["N", "E", "O"] = "N"
    stopbits: Literal[1, 2] = 1
    timeout_s: ShortTime = 0.1


class SerialFormat(Table, frozen=True, kw_only=True):
    """How bytes travel on a serial line."""

    baudrate: Annotated[int, Meta(ge=300, le=1000000)]
    bytesize: Literal[7, 8] = 8
    parity: Literal["N", "E", "O"] = "N"
    stopbits: Literal[1, 2] = 1


class ConditionerProfile(Table, frozen=True, kw_only=True):
    """An ASCII load-cell conditioner that answers `!sss:WORD?` with a signed decimal number."""

    name: DeviceName
    title: str = ""
    source: str
    verified: bool
    line: SerialFormat
    station: Annotated[int, Meta(ge=0, le=999)] = 1
    value_word: Annotated[str, Meta(pattern="^[A-Z0-9]{1,8}$")] = "SYS"
    status_word: Annotated[str, Meta(pattern="^[A-Z0-9]{1,8}$")] = "STAT"
    status_every: Annotated[int, Meta(ge=1, le=1000)] = 10  # values asked for between two looks at the status
    timeout_s: ShortTime = 0.05
    scale: float
    unit: str
    range: Range
    bad: list[StatusBit]
    old_value_bit: Bit


class InclinometerProfile(Table, frozen=True, kw_only=True):
    """A dual-axis inclinometer that sends lines `X=±xx.xxx`, `Y=±xx.xxx` by itself."""

    name: DeviceName
    title: str = ""
    source: str
    verified: bool
    line: SerialFormat
    pair_s: ShortTime = 0.03  # Y later than this after X is of another measurement
    timeout_s: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.2  # without a pair for so long the value is held
    scale: float
    unit: str
    range: Range
    fastest_per_s: Positive  # a faster change is a broken line, in units a second
    step: NonNegative = 0.0  # and this much more, for noise and resolution


Profile = TypeVar("Profile", ModbusProfile, ConditionerProfile, InclinometerProfile)

BLOCK_LIMIT = 125  # registers in one answer
_WORDS = {"int16": 1, "uint16": 1, "int32": 2, "uint32": 2, "float32": 2}
_STRUCTS = {kind: struct.Struct(f">{code}") for kind, code in zip(_WORDS, "hHiIf", strict=True)}


def load(path: Path, kind: type[Profile]) -> Profile:
    """Read and check a device profile.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from None
    profile = parse(text, kind, path)
    if problem := _problem(profile):
        raise ConfigurationError(f"{path}: {problem}")
    return profile


def block(profile: ModbusProfile) -> tuple[int, int]:
    """Address and count of the one request that brings all channels and the status."""
    spans = [(register.address, _WORDS[register.type]) for register in profile.channels.values()]
    if profile.status:
        spans.append((profile.status.address, 1))
    first = min(address for address, _ in spans)
    return first, max(address + words for address, words in spans) - first


def decode(profile: ModbusProfile, registers: Sequence[int], stamp_s: float) -> dict[str, Reading]:
    """Readings of the channels from the registers of `block(profile)`: GOOD, or BAD with NaN and the reason."""
    first, _ = block(profile)
    status = registers[profile.status.address - first] if profile.status else 0
    complaints = [rule.message for rule in profile.status.bad if status >> rule.bit & 1] if profile.status else []
    readings: dict[str, Reading] = {}
    for name, register in profile.channels.items():
        value = _number(register, registers[register.address - first :])
        if register.sign_bit is not None and status >> register.sign_bit & 1:
            value = -value
        value = value * register.scale + register.offset
        readings[name] = judged(value, register.unit, register.range, stamp_s, "; ".join(complaints))
    return readings


def judged(value: float, unit: str, plausible: Range, stamp_s: float, complaint: str = "") -> Reading:
    """A reading of a fresh value, BAD with NaN when the device complains or the value cannot be true."""
    low, high = plausible
    if not complaint and not low <= value <= high:  # also when it is NaN
        complaint = f"{value:g} {unit} is outside the plausible {low:g} to {high:g} {unit}"
    if complaint:
        return Reading(math.nan, unit, stamp_s, Quality.BAD, complaint)
    return Reading(value, unit, stamp_s, Quality.GOOD, "")


def newest(before: Reading, fresh: Reading) -> Reading:
    """What to keep after `fresh` came: a bad one changes the quality, not the last valid value."""
    return fresh if fresh.quality is Quality.GOOD else before.bad(fresh.message)


def _number(register: Register, words: Sequence[int]) -> float:
    wire = b"".join(word.to_bytes(2, "big") for word in words[: _WORDS[register.type]])
    places = [register.order.index(letter) for letter in "ABCD"]
    if len(wire) == 2:  # only the order of the bytes inside a word matters
        places = [0, 1] if places[0] < places[1] else [1, 0]
    return float(_STRUCTS[register.type].unpack(bytes(wire[place] for place in places))[0])


def _problem(profile: msgspec.Struct) -> str:
    """What types cannot say: ranges in order, scales not 0, blocks that fit an answer; empty if all is well."""
    if isinstance(profile, ModbusProfile):
        if not profile.channels:
            return "channels: found none, expected at least one"
        for name, register in profile.channels.items():
            key = f"channels.{name}"
            if problem := _scale_problem(register.scale, register.range, f"{key}."):
                return problem
            if register.sign_bit is not None and (profile.status is None or not register.type.startswith("u")):
                return f"{key}.sign_bit: found {register.sign_bit}, expected an unsigned type and a [status] table"
        first, count = block(profile)
        if count > BLOCK_LIMIT or first + count > 65536:
            return f"channels: found registers {first} to {first + count - 1}, expected at most {BLOCK_LIMIT} in a row"
    elif isinstance(profile, ConditionerProfile | InclinometerProfile):
        return _scale_problem(profile.scale, profile.range, "")
    return ""


def _scale_problem(scale: float, plausible: Range, prefix: str) -> str:
    if scale == 0.0:
        return f"{prefix}scale: found 0, expected a number that is not 0"
    if not plausible[0] < plausible[1]:
        return f"{prefix}range: found {list(plausible)}, expected [smallest, largest] in this order"
    return ""
