"""One controller for each PLC and computer."""

import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress

from controller import schema
from controller.errors import ConfigurationError


@contextmanager
def sole_controller(ads: schema.Ads) -> Generator[None]:
    """Be the one controller of this PLC: TwinCAT keeps one connection per host, so a second one would take it away.

    The lock is the name of an abstract socket: no file of another user in the way, and gone with the process.

    Raises:
        ConfigurationError: another process is; says which.
    """
    name = f"\0pkm {ads.ams_net_id} {ads.address}"[:100]
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(name)
        except OSError:
            raise ConfigurationError(
                f"ads.address: another controller, process {_holder(name) or 'unknown'}, drives the PLC at "
                f"{ads.address} already"
            ) from None
        lock.listen()
        yield


def _holder(name: str) -> int:
    """The process that listens at an abstract socket; 0 where it cannot be told."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.settimeout(0.1)
        probe.connect(name)
        return struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return 0
