"""Errors that end a command with one plain sentence and an exit code; never raised inside the control loop."""

from typing import Any


class PkmError(Exception):
    """Base of all: the message is the sentence the user reads."""

    exit_code = 1


class ConfigurationError(PkmError):
    """A file, key, line or argument is wrong."""

    exit_code = 2


class DeviceError(PkmError):
    """A device cannot be reached."""

    exit_code = 3


class RunError(PkmError):
    """The run ended in a fault; `summary` holds its figures when it got that far."""

    exit_code = 4

    def __init__(self, message: str, summary: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.summary = summary
