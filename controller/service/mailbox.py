"""Operator requests: a Unix datagram socket that only the service's own user may write to, never waited for.

A datagram is JSON: {"id": 1, "kind": "move", "pose": {...}, "speed_share": 0.5}. The answer goes back to the sender's
own socket once a tick has judged it. At most one request is taken a tick; the socket's queue holds the rest.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from controller.datagram import MOST_BYTES, ask, listen
from controller.errors import ConfigurationError, DeviceError
from controller.message import Answer, Message, request_of
from controller.records import Output, Request, RequestKind, Verdict
from controller.safety.supervisor import explain

NOTHING = Request(RequestKind.NONE, 0, np.zeros(6))


class Mailbox:
    """The listening side. `poll` and `answer` never wait."""

    def __init__(self, path: Path, tracks: Sequence[str] = ()) -> None:
        self._path, self._tracks = path, tracks
        try:
            self._socket = listen(path)
        except OSError as error:
            raise ConfigurationError(f"requests.path: cannot listen at {path}: {error.strerror or error}") from None
        self._decoder = msgspec.json.Decoder(Message)
        self._sender: str | None = None
        self._kind = RequestKind.NONE  # of the request that waits for its answer
        self.refused = 0  # datagrams that were no request

    def poll(self) -> Request:
        """The next request, or NOTHING."""
        try:
            data, sender = self._socket.recvfrom(MOST_BYTES + 1)
        except OSError:
            return NOTHING
        try:
            request = self._decoded(data)
        except (msgspec.DecodeError, ValueError) as error:
            self.refused += 1
            self._send(Answer(0, "REFUSED", "", str(error)), sender)
            return NOTHING
        self._sender, self._kind = sender, request.kind
        return request

    def _decoded(self, data: bytes) -> Request:
        if len(data) > MOST_BYTES:
            raise ValueError(f"found more than {MOST_BYTES} bytes, expected a short request")
        return request_of(self._decoder.decode(data), self._tracks)

    def answer(self, output: Output) -> None:
        """Tell the sender of the request that this tick judged."""
        if self._sender is not None and output.verdict is not Verdict.NONE:
            text = explain(output.verdict, self._kind, output.refusal)
            reply = Answer(output.request_id, output.verdict.name, output.mode.name, text)
            self._send(reply, self._sender)
            self._sender = None

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _send(self, reply: Answer, sender: str | None) -> None:
        if sender:
            with suppress(OSError):  # the sender did not wait
                self._socket.sendto(msgspec.json.encode(reply), sender)


def send(path: Path, message: Message, timeout_s: float = 1.0) -> Answer:
    """Send a request to a running service and wait for its answer.

    Raises:
        DeviceError: if no service listens or none answers.
    """
    try:
        return msgspec.json.decode(ask(path, msgspec.json.encode(message), timeout_s), type=Answer)
    except TimeoutError:
        raise DeviceError(f"the controller at {path} did not answer within {timeout_s:g} s") from None
    except OSError:
        raise DeviceError(f"no controller listens at {path}: is `pkm run` running?") from None
