"""The command `pkm` in this process, and what a refusal looks like."""

import contextlib
import io
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from controller.__main__ import main
from tests.machines import ROOT


class Result(NamedTuple):
    code: int
    out: str
    err: str


def pkm(*arguments: str | Path, given: str = "") -> Result:
    """The command in this process: what escapes `main` would be a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(ROOT),
        mock.patch("sys.stdin", io.StringIO(given)),
    ):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
    return Result(code, out.getvalue(), err.getvalue())


def refused(result: Result, code: int, *words: str) -> None:
    assert result.code == code, result.err
    assert result.out == ""
    for word in words:
        assert word in result.err
