"""The poses of a motion-base host: one UDP datagram each, see docs/reference/tracks-and-stream.md. Never waited for.

The socket is drained once a tick. The newest good pose counts; what is refused is counted by its reason.
"""

import math
import socket
import struct
from collections import Counter
from dataclasses import replace

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.ports import SensorReader
from controller.records import Array, Sample, Stream
from controller.safety.limits import Limits

MAGIC, VERSION = b"PKMS", 1
DATAGRAM = struct.Struct("<4sHHI4xd6d")  # magic, version, 0, sequence, host time s, pose m and rad
MOST_A_TICK = 256  # a flood takes a millisecond of a tick, not all of it
FAR = 1.0  # a pose farther beyond its range than this share of the range is none that was meant for this machine
# After a silence of so many time-outs a host may begin anew, or another one: whoever followed has been stopped by then.
RESTART = 2.0
NOTHING_YET = Stream(-1, 0.0, math.inf, np.full(6, np.nan))


class StreamReceiver:
    """The listening side. Nothing in it waits."""

    def __init__(self, stream: schema.Stream, limits: Limits) -> None:
        """Listen at the stream's address.

        Raises:
            ConfigurationError: nobody can listen there.
        """
        self.counts: Counter[str] = Counter()  # accepted, and refused by reason
        self._timeout_s = stream.timeout_s
        low, high = np.array(limits.pose_min), np.array(limits.pose_max)
        self._low, self._high = low - FAR * (high - low), high + FAR * (high - low)
        self._newest, self._stamp_s, self._sender = NOTHING_YET, -math.inf, None
        host, _, port = stream.address.rpartition(":")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind((host, int(port)))
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(
                f"stream.address: cannot listen at {stream.address}: {error.strerror or error}"
            ) from None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._socket.getsockname()

    def watching(self, sensed: SensorReader) -> SensorReader:
        """`sensed`, whose samples then have the stream too."""

        def read(sample: Sample, now_s: float) -> Sample:
            return replace(sensed(sample, now_s), stream=self.read(now_s))

        return read

    def read(self, now_s: float) -> Stream:
        """The newest good pose, as seen at monotonic time now_s."""
        for _ in range(MOST_A_TICK):
            try:
                data, sender = self._socket.recvfrom(DATAGRAM.size + 1)
            except BlockingIOError:
                break
            except OSError:
                continue  # what the network says of a datagram that was never sent from here
            self.counts[self._take(data, sender, now_s)] += 1
        return self._newest._replace(age_s=now_s - self._stamp_s)

    def told(self) -> dict[str, int]:
        """How many datagrams were accepted, and how many were refused by reason."""
        return {"accepted": 0} | dict(sorted(self.counts.items()))

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _take(self, data: bytes, sender: object, now_s: float) -> str:
        """Keep the pose of a datagram, or say why it is refused."""
        if len(data) != DATAGRAM.size:
            return "size"
        magic, version, _, seq, host_s, *numbers = DATAGRAM.unpack(data)
        if (magic, version) != (MAGIC, VERSION):
            return "magic"
        pose = np.array(numbers)
        if reason := self._senseless(host_s, pose) or self._out_of_turn(seq, host_s, sender, now_s):
            return reason
        self._newest, self._stamp_s, self._sender = Stream(seq, host_s, 0.0, pose), now_s, sender
        return "accepted"

    def _senseless(self, host_s: float, pose: Array) -> str:
        if not (math.isfinite(host_s) and np.isfinite(pose).all()):
            return "not_finite"
        far = (np.abs(pose[3:]) > math.pi).any() or (pose < self._low).any() or (pose > self._high).any()
        return "far" if far else ""

    def _out_of_turn(self, seq: int, host_s: float, sender: object, now_s: float) -> str:
        if now_s - self._stamp_s > RESTART * self._timeout_s:
            return ""
        if sender != self._sender:
            return "other_sender"
        if not 0 < (seq - self._newest.seq) % 2**32 < 2**31:  # the number begins anew after 2³² - 1
            return "sequence"
        return "" if host_s > self._newest.host_s else "host_time"
