"""Analogue inputs of the PLC's terminals as numbers, and back. Pure."""

from drivers.exchange import InputStatus
from drivers.profile import CurrentTerminalProfile, TerminalProfile
from drivers.reading import Reading, judged, newest

SPAN_A, LOWEST_A = 0.016, 0.004

_CALIBRATING = int(InputStatus.CALIBRATING)  # plain: an IntFlag costs 1 us an operation
_COMPLAINTS = {
    InputStatus.NO_DATA: "the terminal sends no new data: not in operation, or the bus is broken",
    InputStatus.INVALID: "the terminal declares its value invalid",
    InputStatus.OVERRANGE: "above what the terminal can measure",
    InputStatus.UNDERRANGE: "below what the terminal can measure",
    InputStatus.ERROR: "the terminal reports an error: wire break, short circuit or supply",
}


def decode(profile: TerminalProfile, raw: int, status: int, stamp_s: float, before: Reading) -> Reading:
    """The reading of an input, in A or V/V, after `before`.

    While it calibrates itself, a terminal freezes its value and says so by a bit alone: no new value then.
    """
    complaint = "; ".join(text for bit, text in _COMPLAINTS.items() if status & bit) if status else ""
    if status & _CALIBRATING and not complaint:
        return before.held("the terminal calibrates itself")
    if isinstance(profile, CurrentTerminalProfile):
        value, unit = LOWEST_A + SPAN_A * raw / profile.full_scale_raw, "A"
        low, high = profile.wire_break_a, profile.short_circuit_a
        if not low <= value <= high:
            complaint = f"{1e3 * value:.1f} mA: " + ("wire break" if value < low else "short circuit")
    else:
        value, unit, low, high = raw / profile.raw_per_v_v, "V/V", -profile.range_v_v, profile.range_v_v
    return newest(before, judged(value, unit, (low, high), stamp_s, complaint))


def encode(profile: TerminalProfile, value: float) -> tuple[int, int]:
    """Raw value and status of an input at which `value` (A or V/V) stands, clamped and flagged as terminals do it."""
    if isinstance(profile, CurrentTerminalProfile):
        low, high = 0.0, profile.short_circuit_a + 0.001
        scale, offset = profile.full_scale_raw / SPAN_A, LOWEST_A
        wrong = value < profile.wire_break_a or value > profile.short_circuit_a
    else:
        low, high, scale, offset, wrong = -profile.range_v_v, profile.range_v_v, profile.raw_per_v_v, 0.0, False
    status = InputStatus.UNDERRANGE * (value < low) | InputStatus.OVERRANGE * (value > high) | InputStatus.ERROR * wrong
    return round((min(max(value, low), high) - offset) * scale), int(status)
