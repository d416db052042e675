"""Datagrams between processes of one user: a Unix socket with a path, one datagram a question, one the answer."""

import os
import socket
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

MOST_BYTES = 8192


def listen(path: Path) -> socket.socket:
    """A socket at `path`, never waited for, which only this user may write to; the folder is made.

    Raises:
        OSError: there can be none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        with private():
            listening.bind(str(path))
    except OSError:
        listening.close()
        raise
    return listening


@contextmanager
def private() -> Generator[None]:
    """What is made meanwhile, only this user may open."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def ask(path: Path, question: bytes, timeout_s: float = 1.0) -> bytes:
    """Send a question to the socket at `path` and wait for the answer.

    Raises:
        TimeoutError: nobody answered in time.
        OSError: nobody listens.
    """
    with tempfile.TemporaryDirectory(prefix="pkm-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(f"{folder}/answer")
        own.settimeout(timeout_s)
        own.sendto(question, str(path))
        return own.recv(MOST_BYTES)
