"""The registers of a Modbus instrument as numbers, and back. Pure."""

import struct
from collections.abc import Mapping, Sequence

from drivers.profile import WORDS, ModbusProfile, Register, block
from drivers.reading import Reading, judged

_STRUCTS = {kind: struct.Struct(f">{code}") for kind, code in zip(WORDS, "hHiIf", strict=True)}


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


def encode(profile: ModbusProfile, values: Mapping[str, float]) -> dict[int, int]:
    """Registers by address in which `decode` finds these values, as near as their resolution allows.

    A value that does not fit becomes the nearest that does; without a fault the status shows signs only.
    """
    first, count = block(profile)
    registers = dict.fromkeys(range(first, first + count), 0)
    registers |= {expected.address: expected.value for expected in profile.expect}
    status = 0
    for name, register in profile.channels.items():
        raw = (values[name] - register.offset) / register.scale
        if register.sign_bit is not None:
            status |= (raw < 0.0) << register.sign_bit
            raw = abs(raw)
        if register.type != "float32":
            bits = 16 * WORDS[register.type]
            low, high = (0, 2**bits - 1) if register.type[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            raw = min(max(round(raw), low), high)
        number = _STRUCTS[register.type].pack(raw)
        wire = bytes(number[place] for place in _places(register, len(number), wire=True))
        for k in range(WORDS[register.type]):
            registers[register.address + k] = int.from_bytes(wire[2 * k : 2 * k + 2], "big")
    if profile.status:
        registers[profile.status.address] = status
    return registers


def _number(register: Register, words: Sequence[int]) -> float:
    wire = b"".join(word.to_bytes(2, "big") for word in words[: WORDS[register.type]])
    number = bytes(wire[place] for place in _places(register, len(wire), wire=False))
    return float(_STRUCTS[register.type].unpack(number)[0])


def _places(register: Register, size: int, wire: bool) -> list[int]:
    """Where each byte of the number stands on the wire, or the other way round."""
    if size == 2:  # only the order of the bytes inside a word matters
        return [0, 1] if register.order in ("ABCD", "CDAB") else [1, 0]
    return ["ABCD".index(letter) for letter in register.order] if wire else [*map(register.order.index, "ABCD")]
