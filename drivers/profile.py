"""Device profiles: how a kind of instrument speaks and what of it may be believed, as data in config/devices/*.toml.

Where one is plugged in is the business of the site. `scale` and `offset` turn the raw number into `unit`, an SI symbol:
value = sign * raw * scale + offset, and a value outside `range` is refused as implausible.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

from msgspec import Meta

from controller.errors import ConfigurationError
from controller.schema import NonNegative, Positive, Range, ShortTime, Table
from controller.settings import parse, text_of

INPUTS = 16  # analogue inputs that the exchange with the PLC has room for

Bit = Annotated[int, Meta(ge=0, le=15)]
Address = Annotated[int, Meta(ge=0, le=65535)]
DeviceName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*\Z")]


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


class ModbusProfile(Table, frozen=True, kw_only=True, tag_field="kind", tag="modbus"):
    """A Modbus instrument. All channels come from one request, so that values and status belong together."""

    name: DeviceName
    title: str = ""
    source: str
    verified: bool  # against the real device
    function: Literal[3, 4] = 3
    slowest_answer_s: Annotated[float, Meta(gt=0.0, le=2.0)]  # the line is drained this long after a time-out
    channels: dict[str, Register]
    status: StatusWord | None = None
    expect: tuple[Expected, ...] = ()


class SerialFormat(Table, frozen=True, kw_only=True):
    """How bytes travel on a serial line."""

    baudrate: Annotated[int, Meta(ge=300, le=1000000)]
    bytesize: Literal[7, 8] = 8
    parity: Literal["N", "E", "O"] = "N"
    stopbits: Literal[1, 2] = 1


class ConditionerProfile(Table, frozen=True, kw_only=True, tag_field="kind", tag="conditioner"):
    """An ASCII load-cell conditioner that answers `!sss:WORD?` with a signed decimal number."""

    name: DeviceName
    title: str = ""
    source: str
    verified: bool
    line: SerialFormat
    station: Annotated[int, Meta(ge=0, le=999)] = 1
    value_word: Annotated[str, Meta(pattern=r"^[A-Z0-9]{1,8}\Z")] = "SYS"
    status_word: Annotated[str, Meta(pattern=r"^[A-Z0-9]{1,8}\Z")] = "STAT"
    status_every: Annotated[int, Meta(ge=1, le=1000)] = 10  # values asked for between two looks at the status
    timeout_s: ShortTime = 0.05
    scale: float
    unit: str
    range: Range
    bad: list[StatusBit]
    old_value_bit: Bit


class InclinometerProfile(Table, frozen=True, kw_only=True, tag_field="kind", tag="inclinometer"):
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


class CurrentTerminalProfile(Table, frozen=True, kw_only=True, tag_field="kind", tag="current-terminal"):
    """An analogue terminal for 4 to 20 mA: I = 4 mA + 16 mA raw / full_scale_raw. Its channels are in A."""

    name: DeviceName
    title: str = ""
    source: str
    verified: bool
    full_scale_raw: Annotated[int, Meta(ge=1, le=2**31 - 1)]  # 32767 legacy, 30518 extended: mixed up, 7 % of the force
    wire_break_a: Annotated[float, Meta(ge=0.0, le=0.004)] = 0.0036  # below
    short_circuit_a: Annotated[float, Meta(ge=0.02, le=0.1)] = 0.021  # above


class BridgeTerminalProfile(Table, frozen=True, kw_only=True, tag_field="kind", tag="bridge-terminal"):
    """An analogue terminal for strain-gauge bridges: output / supply = raw / raw_per_v_v. Its channels are in V/V."""

    name: DeviceName
    title: str = ""
    source: str
    verified: bool
    raw_per_v_v: Positive
    range_v_v: Positive  # what the terminal can measure, both ways


TerminalProfile: TypeAlias = CurrentTerminalProfile | BridgeTerminalProfile
Profile: TypeAlias = ModbusProfile | ConditionerProfile | InclinometerProfile | TerminalProfile

BLOCK_LIMIT = 125  # registers in one answer
WORDS = {"int16": 1, "uint16": 1, "int32": 2, "uint32": 2, "float32": 2}


def load(path: Path) -> Profile:
    """Read and check a device profile.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    profile = cast("Profile", parse(text_of(path), cast("Any", Profile), path))
    if problem := _problem(profile):
        raise ConfigurationError(f"{path}: {problem}")
    return profile


def block(profile: ModbusProfile) -> tuple[int, int]:
    """Address and count of the one request that brings all channels and the status."""
    spans = [(register.address, WORDS[register.type]) for register in profile.channels.values()]
    if profile.status:
        spans.append((profile.status.address, 1))
    first = min(address for address, _ in spans)
    return first, max(address + words for address, words in spans) - first


def unit_of(profile: Profile, channel: str) -> str | None:
    """Unit of a channel, "" for a ratio; None when the instrument has no such channel."""
    match profile:
        case ModbusProfile():
            return profile.channels[channel].unit if channel in profile.channels else None
        case ConditionerProfile():
            return profile.unit if channel == "value" else None
        case InclinometerProfile():
            return profile.unit if channel in ("x", "y") else None
        case _:
            known = channel in map(str, range(1, INPUTS + 1))
            return ("A" if isinstance(profile, CurrentTerminalProfile) else "V/V") if known else None


def _problem(profile: Profile) -> str:
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
