"""One viewer of the operator page: samples, events and state over a WebSocket.

A viewer is a place in the ring and a number of events: nothing is queued for it. One that is slow misses samples and is
told so, one that takes nothing is put out.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from controller.gateway.board import Board
from controller.ring import RingReader

FRAME_S = 0.05
FRAME_ROWS = 200
STATE_S = 1.0
ALLOWED_S = 1.0  # between looks whether the login still holds
FROZEN_S = 5.0  # without taking data
BEHIND_S = 5.0  # a viewer further behind jumps to the newest row
HISTORY_S = 120.0  # the longest
COUNTING = frozenset({"t", "recorded", "published"})  # of the state, changes all the time
CHATTER = 100  # messages of a viewer, who has nothing to say


class _Place:
    """Where a viewer is."""

    def __init__(self, board: Board) -> None:
        self.ring: RingReader | None = None
        self.cursor = self.live_from = self.most_behind = 0
        self.events = board.told
        self.ended: str | None = None
        self.state: dict[str, Any] = {}
        self.state_s = self.looked_s = self.allowed_s = -1e9


async def follow(live: web.WebSocketResponse, board: Board, history_s: float, allowed: Callable[[], bool]) -> None:
    """Send until the viewer goes, is put out, or `allowed`, asked once a second, is False.

    Raises:
        TimeoutError: the viewer does not take data; its connection is to be cut.
        ConnectionError: it is gone.
    """
    listening = asyncio.create_task(_listen(live))
    place, loop = _Place(board), asyncio.get_running_loop()
    due = loop.time()
    try:
        while not listening.done():
            if loop.time() - place.allowed_s > ALLOWED_S:
                place.allowed_s = loop.time()
                if not allowed():
                    await live.close(code=WSCloseCode.POLICY_VIOLATION, message=b"the login has ended")
                    return
            await _session(live, board, place, history_s)
            await _rows(live, place)
            await _news(live, board, place, loop.time())
            due = max(due + FRAME_S, loop.time() - FRAME_S)
            await asyncio.wait({listening}, timeout=max(due - loop.time(), 0.0))
        await live.close()
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _listen(live: web.WebSocketResponse) -> None:
    """Until the viewer closes or talks too much."""
    for _ in range(CHATTER):
        if (await live.receive()).type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
            return


async def _text(live: web.WebSocketResponse, message: dict[str, Any]) -> None:
    async with asyncio.timeout(FROZEN_S):
        await live.send_str(msgspec.json.encode(message).decode())  # null for what is not finite


async def _session(live: web.WebSocketResponse, board: Board, place: _Place, history_s: float) -> None:
    """Say hello to a session that is new to this viewer."""
    ring = board.ring
    if ring is None or ring is place.ring:
        return
    rate_hz = float(ring.meta["rate_hz"])
    place.ring, place.ended, place.live_from = ring, None, ring.written
    place.cursor = max(0, ring.written - int(min(history_s, HISTORY_S) * rate_hz), ring.written - ring.capacity + 1)
    place.most_behind = int(BEHIND_S * rate_hz)
    columns = [channel[0] for channel in ring.meta["channels"]]
    hello = {"type": "hello", "session": ring.meta["session"], "columns": columns, "first": place.cursor}
    await _text(live, hello)


async def _rows(live: web.WebSocketResponse, place: _Place) -> None:
    """All rows that there are: a viewer that is sent its history is not told the rest before."""
    ring = place.ring
    while ring is not None:
        start = place.cursor
        if start >= place.live_from and ring.written - start > place.most_behind:
            start = ring.written
        first, rows = ring.read(start, FRAME_ROWS)
        if first > place.cursor:
            await _text(live, {"type": "dropped", "samples": first - place.cursor})
            place.cursor = first
        if not len(rows):
            return
        async with asyncio.timeout(FROZEN_S):
            await live.send_bytes(struct.pack("<d", first) + rows.astype("<f8", copy=False).tobytes())
        place.cursor = first + len(rows)
        if len(rows) < FRAME_ROWS:
            return
        await asyncio.sleep(0)  # a send that succeeds at once does not give way by itself


async def _news(live: web.WebSocketResponse, board: Board, place: _Place, now_s: float) -> None:
    """New events, the state once a second and on change, the end of a session."""
    fresh = min(board.told - place.events, len(board.events))
    if fresh:
        for event in list(board.events)[-fresh:]:
            await _text(live, {"type": "event", "event": event})
    place.events = board.told
    if now_s - place.looked_s > 4 * FRAME_S:
        place.looked_s, state = now_s, board.shown()
        matters = {name: value for name, value in state.items() if name not in COUNTING}
        if now_s - place.state_s > STATE_S or matters != place.state:
            place.state, place.state_s = matters, now_s
            await _text(live, {"type": "state", **state})
    if board.ended is not None and place.ended is None and place.ring is board.ring:
        place.ended = board.ended
        await _text(live, {"type": "ended", "cause": board.ended})
