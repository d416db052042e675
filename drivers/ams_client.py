"""The one AMS/TCP request that is asked over a plain socket, in bounded time: for the ADS state.

An answer counts only if it carries the invoke id of the request, its command, and lengths that agree.
"""

import socket
import struct
import time

ANSWER_LIMIT = 4096  # bytes in one frame; the answer has 40

_TCP = struct.Struct("<HI")
_AMS = struct.Struct("<6sH6sHHHIII")
_STATE = struct.Struct("<IHH")  # result, ADS state, device state
_READ_STATE = 4
_FLAG_RESPONSE, _FLAGS_REQUEST = 0x0001, 0x0004
_OWN_PORT = 32000  # AMS port of the asking side: any that no AdsLib port uses
_INVOKE_ID = 1


class AdsError(Exception):
    """The router or the PLC refused the request."""

    def __init__(self, code: int) -> None:
        """Refused with this ADS error code."""
        super().__init__(f"ADS error {code}")
        self.code = code


class MalformedError(Exception):
    """What came is no AMS/TCP, or no answer to what was asked."""


def state(tcp: socket.socket, net_id: str, ams_port: int, timeout_s: float) -> int:
    """ADS state of the PLC at that AMS address, asked over a connected socket that nothing was asked over before.

    Raises:
        TimeoutError: no answer within `timeout_s`.
        AdsError: the request was refused.
        MalformedError: whatever is there does not speak AMS/TCP.
        OSError: the connection is gone; ConnectionResetError also for an orderly end.
    """
    deadline_s = time.monotonic() + timeout_s
    target = bytes(int(part) for part in net_id.split("."))
    source = socket.inet_aton(tcp.getsockname()[0]) + b"\1\1"  # as routes are usually entered, and as AdsLib has it
    request = _AMS.pack(target, ams_port, source, _OWN_PORT, _READ_STATE, _FLAGS_REQUEST, 0, 0, _INVOKE_ID)
    tcp.sendall(_TCP.pack(0, len(request)) + request)
    while True:
        reserved, length = _TCP.unpack(_exactly(tcp, _TCP.size, deadline_s))
        if reserved != 0 or not _AMS.size <= length <= ANSWER_LIMIT:
            raise MalformedError(f"AMS/TCP header {reserved:#06x}, length {length}")
        frame = _exactly(tcp, length, deadline_s)
        *_, command, flags, count, error, invoke_id = _AMS.unpack_from(frame)
        if not flags & _FLAG_RESPONSE or count != length - _AMS.size:
            raise MalformedError(f"flags {flags:#06x}, {count} bytes of data in a frame of {length}")
        if invoke_id != _INVOKE_ID:
            continue
        if command != _READ_STATE:
            raise MalformedError(f"an answer to command {command} instead of {_READ_STATE}")
        if error:
            raise AdsError(error)
        data = frame[_AMS.size :]
        result = int.from_bytes(data[:4], "little")
        if result and len(data) >= 4:
            raise AdsError(result)
        if len(data) != _STATE.size:
            raise MalformedError(f"{len(data)} bytes of data instead of {_STATE.size}")
        return _STATE.unpack(data)[1]


def _exactly(tcp: socket.socket, size: int, deadline_s: float) -> bytes:
    received = b""
    while len(received) < size:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0.0:
            raise TimeoutError
        tcp.settimeout(left_s)
        part = tcp.recv(size - len(received))
        if not part:
            raise ConnectionResetError("closed by the other side")
        received += part
    return received
