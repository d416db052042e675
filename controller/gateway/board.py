"""What the gateway knows at the moment and what it told: written by the service, read by the operator page."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controller.gateway.events import Event, now_t
from controller.ring import RingReader

EVENTS = 1000  # that are kept for the page
UNRECORDED = 1000  # that may wait for their recording


@dataclass(slots=True)
class Board:
    """One for the life of the gateway."""

    ring: RingReader | None = None  # of the newest session
    state: Callable[[], dict[str, Any]] = dict  # what is true now, as over MQTT
    ended: str | None = None  # why no row comes any more
    viewers: int = 0
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS))
    told: int = 0  # events ever
    unrecorded: deque[Event] = field(default_factory=lambda: deque(maxlen=UNRECORDED))
    publish: Callable[[Event], None] | None = None

    def tell(self, event: Event, recorded: bool = False) -> None:
        """Show and publish an event, and leave it for the recording unless it is there already."""
        self.events.append(event)
        self.told += 1
        if not recorded:
            self.unrecorded.append(event)
        if self.publish:
            self.publish(event)

    def tell_now(self, event: Event) -> None:
        """Tell an event of this moment, by the clock of the session: a step of the wall clock does not reach it."""
        self.tell(msgspec.structs.replace(event, t=now_t(self.ring.meta)) if self.ring else event)

    def to_record(self) -> list[Event]:
        """The events that are not recorded yet, each once."""
        return [self.unrecorded.popleft() for _ in range(len(self.unrecorded))]

    def shown(self) -> dict[str, Any]:
        """The state with what only the page wants to know."""
        return {**self.state(), "viewers": self.viewers}
