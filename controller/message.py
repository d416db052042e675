"""A request and its answer, as they go between gateway and control process: JSON, a datagram each. Pure.

Beside the socket of the control process the gateway has its own for the commands of the same user, and its token.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from controller.records import POSE, Request, RequestKind


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A request as it comes over the socket; `pose` is a target (all six) or amplitudes (those left out are 0)."""

    id: Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
    kind: str
    pose: dict[str, float] = {}
    speed_share: float = 1.0
    frequency_hz: float = 0.0
    track: str = ""  # its name in the site file


class Answer(msgspec.Struct):
    """What the sender gets back."""

    id: int
    verdict: str
    mode: str
    text: str


def request_of(message: Message, tracks: Sequence[str] = ()) -> Request:
    """The record of a message; `tracks` are the site's. ValueError with a sentence if a word in it is unknown."""
    kind = message.kind.upper()
    if kind not in RequestKind.__members__ or kind == "NONE" or not message.kind.isascii():  # ſ is an S in upper case
        raise ValueError(f"kind: found {message.kind!r}, expected one of {[k.name.lower() for k in RequestKind if k]}")
    if unknown := set(message.pose) - set(POSE):
        raise ValueError(f"pose: unknown coordinate {min(unknown)!r}, expected {', '.join(POSE)}")
    if kind == "MOVE" and (missing := [name for name in POSE if name not in message.pose]):
        raise ValueError(f"pose: {', '.join(missing)} missing, a move needs all six coordinates")
    pose = np.array([message.pose.get(name, 0.0) for name in POSE])
    track = tracks.index(message.track) if message.track in tracks else -1
    return Request(RequestKind[kind], message.id, pose, message.speed_share, message.frequency_hz, track)


def socket_path(requests: Path) -> Path:
    """Where the gateway listens for commands of its own user: HTTP over a Unix stream socket."""
    return requests.with_name(requests.name + ".web")


def token_path(requests: Path) -> Path:
    """Where the gateway leaves the address of its page and the local token: JSON, for its own user alone."""
    return requests.with_name(requests.name + ".token")
