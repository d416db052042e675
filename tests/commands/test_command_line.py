"""What can be said to `pkm`, and what is done about it."""

import argparse

from controller.__main__ import CALLS
from controller.command_line import parser


def test_every_command_is_done_and_nothing_else() -> None:
    [commands] = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert set(commands.choices) == set(CALLS)
