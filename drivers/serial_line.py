"""Instruments on a serial line: pure parsers (bytes in -> measurements out) and a thread that feeds them.

    loop:    read(channel)  ◄──one frozen reading────  thread: open, ask or listen, parse, check, open again

Neither instrument protects its bytes with a checksum. What is accepted has therefore the full form, comes in time, is
plausible, and for the inclinometer changes no faster than the machine can tilt. A missing byte inside a number that is
still plausible passes: the reason to keep such an instrument away from a control loop.
Give the path below /dev/serial/by-id: the short names change when an adapter is plugged again.
"""

import logging
import math
import re
import termios
import threading
import time

import serial

from controller.records import Quality
from drivers.profile import ConditionerProfile, InclinometerProfile
from drivers.reading import Reading, judged, newest

log = logging.getLogger(__name__)

PAUSE_S = 1.0  # before the line is opened again
TURN_S = 0.02  # longest wait for bytes before looking whether to close
DRAIN_S = 0.2  # after a time-out: longer than any late answer, which looks like the answer to the next request
LINE_LIMIT = 64  # bytes without an end of line are noise
PERIOD_S = 0.01  # a conditioner is not asked more often

_NUMBER = re.compile(rb"[+-]\d{1,8}\.\d{1,6}")
_AXIS = re.compile(rb"([XY])=([+-]\d\d\.\d{3})")
_AXIS_BYTES = 11  # with the end of line


class ConditionerParser:
    """Lines of an ASCII conditioner."""

    def __init__(self) -> None:
        self._received = b""

    def receive(self, data: bytes) -> list[float | None]:
        """A number for each complete answer in the bytes so far, None for one that is a refusal or no number."""
        *lines, rest = (self._received + data).split(b"\r")
        self._received = rest[-LINE_LIMIT:]
        return [float(line) if _NUMBER.fullmatch(line) else None for line in lines]

    def clear(self) -> None:
        """Forget an unfinished line."""
        self._received = b""


class InclinometerParser:
    """Lines of an inclinometer that sends X and Y by turns; only complete pairs count."""

    def __init__(self, pair_s: float) -> None:
        """Pairs whose Y ends no later than pair_s after their X."""
        self._pair_s = pair_s
        self._received = b""
        self._x: tuple[float, float] | None = None  # number and monotonic time, while it waits for its Y

    def receive(self, data: bytes, now_s: float) -> list[tuple[float, float, float]]:
        """X and Y as sent and the monotonic time of X, for each pair that these bytes of time now_s complete."""
        *lines, rest = (self._received + data).split(b"\r\n")
        self._received = rest[-LINE_LIMIT:]
        pairs: list[tuple[float, float, float]] = []
        for line in lines:
            found = _AXIS.fullmatch(line)
            x, self._x = self._x, None
            if found is None:
                continue
            if found[1] == b"X":
                self._x = float(found[2]), now_s
            elif x is not None and now_s - x[1] <= self._pair_s:
                pairs.append((x[0], float(found[2]), x[1]))
        return pairs


def tilt(
    profile: InclinometerProfile, pair: tuple[float, float, float], before: dict[str, Reading]
) -> dict[str, Reading]:
    """Readings of both axes from a pair; both keep their values when one of them is implausible.

    What a broken line makes of a number is seen by its rate of change since the last good value. The longer that is
    ago, the more change is allowed, so that a true step is believed after some time.
    """
    stamp_s = pair[2]
    fresh: dict[str, Reading] = {}
    for name, raw in zip(("x", "y"), pair[:2], strict=True):
        value, last = raw * profile.scale, before[name]
        complaint = ""
        if abs(value - last.value) > profile.step + profile.fastest_per_s * (stamp_s - last.stamp_s):
            complaint = f"{name} jumped from {last.value:g} to {value:g} {profile.unit}: noise on the line"
        fresh[name] = judged(value, profile.unit, profile.range, stamp_s, complaint)
    reasons = [reading.message for reading in fresh.values() if reading.quality is not Quality.GOOD]
    return {name: reading.bad("; ".join(reasons)) for name, reading in before.items()} if reasons else fresh


class _LineError(Exception):
    """Why the line is of no further use: one plain sentence for the operator."""


class SerialSensor:
    """One instrument on one serial line: channel `value` of a conditioner, `x` and `y` of an inclinometer.

    No call waits for the line, except `close`, for at most 1 s.
    """

    def __init__(self, path: str, profile: ConditionerProfile | InclinometerProfile) -> None:
        """Prepare to read the instrument at `path`; `open` starts it."""
        self._path = path
        self._profile = profile
        names = ["value"] if isinstance(profile, ConditionerProfile) else ["x", "y"]
        self._readings = {name: Reading(unit=profile.unit) for name in names}
        self._exchange_s = math.nan
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"serial {path}", daemon=True)

    def open(self) -> None:
        """Start in the background."""
        self._thread.start()

    def read(self, channel: str) -> Reading:
        """The newest reading of a channel; KeyError for one that the instrument does not have."""
        return self._readings[channel]

    @property
    def exchange_s(self) -> float:
        """Duration of the last exchange that brought a value, s; NaN for an instrument that is not asked."""
        return self._exchange_s

    def close(self) -> None:
        """Close the line; returns within 1 s. Also for one that was never opened."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=0.9)

    # -------------------------------------------------------------- the line's own thread

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with self._opened() as port:
                    if isinstance(self._profile, ConditionerProfile):
                        self._converse(port, self._profile)
                    else:
                        self._listen(port, self._profile)
            except _LineError as reason:
                self._keep(str(reason), Quality.HELD)
            except (OSError, termios.error) as error:
                self._keep(f"{self._path} went away: {error}", Quality.HELD)
            except Exception:  # the last resort: a line that tries again is better than a dead thread
                log.exception("serial %s: unexpected error", self._path)
                self._keep(f"unexpected error on {self._path}, see the log", Quality.HELD)
            self._closing.wait(PAUSE_S)
        self._keep("closed", Quality.HELD)

    def _opened(self) -> serial.Serial:
        line = self._profile.line
        try:
            return serial.Serial(
                self._path, line.baudrate, line.bytesize, line.parity, line.stopbits,
                timeout=TURN_S, write_timeout=0.1, exclusive=True,
            )  # fmt: skip
        except (OSError, ValueError, termios.error) as error:
            reason = f"{self._path} cannot be opened: unplugged, in use by another program, or not permitted ({error})"
            raise _LineError(reason) from error

    def _listen(self, port: serial.Serial, profile: InclinometerProfile) -> None:
        """Take the pairs that the inclinometer sends by itself."""
        parser = InclinometerParser(profile.pair_s)
        line = profile.line
        character_bits = 1 + line.bytesize + (line.parity != "N") + line.stopbits
        x_s = _AXIS_BYTES * character_bits / line.baudrate  # how long X was on the line: 12.6 ms at 9600 baud
        heard_s = time.monotonic()
        while not self._closing.is_set():
            data = port.read(max(1, port.in_waiting))
            now_s = time.monotonic()
            for x, y, arrived_s in parser.receive(data, now_s):
                heard_s = now_s
                self._readings = tilt(profile, (x, y, arrived_s - x_s), self._readings)
            if now_s - heard_s > profile.timeout_s:
                self._keep(f"{self._path} sends no complete pair of X and Y", Quality.HELD)

    def _converse(self, port: serial.Serial, profile: ConditionerProfile) -> None:
        """Ask the conditioner for values, and now and then whether they mean anything."""
        parser = ConditionerParser()
        turn, complaint, quality = 0, "", Quality.GOOD
        tick_s = time.monotonic()
        while not self._closing.wait(tick_s - time.monotonic()):
            tick_s = max(tick_s + PERIOD_S, time.monotonic())  # late: skip, never catch up
            if turn % profile.status_every == 0:
                status = self._ask(port, parser, profile, profile.status_word)
                if status is None:
                    turn = 0  # values are believed after the next status
                    continue
                complaint, quality = judged_status(profile, status)
            stamp_s = time.monotonic()
            value = self._ask(port, parser, profile, profile.value_word)
            turn = 0 if value is None else turn + 1
            if value is None:
                continue
            self._exchange_s = time.monotonic() - stamp_s
            if complaint:
                self._keep(complaint, quality)
                continue
            fresh = judged(value * profile.scale, profile.unit, profile.range, stamp_s)
            self._readings = {"value": newest(self._readings["value"], fresh)}

    def _ask(
        self, port: serial.Serial, parser: ConditionerParser, profile: ConditionerProfile, word: str
    ) -> float | None:
        """The number that answers; None when there is none, which is then in the reading, and the line is quiet."""
        port.reset_input_buffer()
        parser.clear()
        port.write(b"!%03d:%s?\r" % (profile.station, word.encode()))
        end_s = time.monotonic() + profile.timeout_s
        answers: list[float | None] = []
        heard = False
        while not answers and time.monotonic() < end_s and not self._closing.is_set():
            data = port.read(max(1, port.in_waiting))
            heard = heard or bool(data)
            answers = parser.receive(data)
        if len(answers) == 1 and answers[0] is not None:
            return answers[0]
        what = "bytes that are no number or a refusal" if heard else "no answer"
        self._keep(f"{self._path}: {what} to {word} of station {profile.station}", Quality.HELD)
        self._drain(port)
        return None

    def _drain(self, port: serial.Serial) -> None:
        end_s = time.monotonic() + DRAIN_S
        while time.monotonic() < end_s and not self._closing.is_set():
            port.read(max(1, port.in_waiting))

    def _keep(self, message: str, quality: Quality) -> None:
        """Keep the values, with the reason why there are no new ones."""
        if not self._closing.is_set() and all(reading.message != message for reading in self._readings.values()):
            log.warning("serial: %s", message)
        self._readings = {
            name: reading.bad(message) if quality is Quality.BAD else reading.held(message)
            for name, reading in self._readings.items()
        }


def judged_status(profile: ConditionerProfile, status: float) -> tuple[str, Quality]:
    """What the status says of the values: a complaint, empty when there is none, and the quality it leaves."""
    if not (math.isfinite(status) and status.is_integer() and 0.0 <= status <= 65535.0):
        return f"status {status:g} is no bit pattern", Quality.HELD
    bits = int(status)
    if complaints := [rule.message for rule in profile.bad if bits >> rule.bit & 1]:
        return "; ".join(complaints), Quality.BAD
    if bits >> profile.old_value_bit & 1:
        return "the conditioner repeats an old value", Quality.HELD
    return "", Quality.GOOD
