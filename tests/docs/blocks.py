"""The code blocks of the documentation, and how each kind is tried.

The word after the language says what else there is to know:

    console             lines with `$ ` are run by bash in a copy of the project; what stands below a line is what it
                        prints, `...` being anything
    console service     its one command runs in the background until another such block, or until one says `after`
    console after       as console; the service is ended by Ctrl-C before
    python              run by the project's Python in the same folder
    toml                parsed, and every table is one that a machine or site may have; `append=FILE` adds it to a file
    json                parsed, one value or several
    text                shown only: pictures made of letters, formulae, files that are no code
    sh                  needs root or hardware: not tried, and counted
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import msgspec
from markdown_it import MarkdownIt

from controller import schema
from controller.records import Fault, Link, Mode
from controller.ring import RingReader
from tests.machines import ROOT, free_port

PATIENCE_S = 120.0
COPIED = ("config", "benchmarks", "Makefile", "pyproject.toml", "requirements.lock")
BUSY = Fault.STATUS_LATE | Fault.STATUS_STALE | Fault.OVERRUN | Fault.LINK_LOST | Fault.PLC_STOPPED | Fault.OVERFORCE
PORTS = re.compile(r"\b(48899|1883|8080|5020)\b")


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    line: int
    language: str
    words: list[str]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """The pages whose blocks are tried: the site and what stands before it."""
    first = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "config/README.md")]
    return [*first, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page; an indented one has no language, so it is none of the kinds."""
    found: list[Block] = []
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block") and not token.info.startswith("{"):
            language, *words = token.info.split() or [""]
            found.append(Block(page, (token.map or [0])[0] + 1, language, words, token.content))
    return found


def matches(expected: list[str], printed: str) -> bool:
    """Did a command print this? `...` is anything, within a line or over lines."""
    pattern = ".*".join(re.escape(part) for part in "\n".join(expected).strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


class Desk:
    """A folder with a copy of what a reader has after `make install`, on ports of its own, and one service at most."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, folder / name)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        self.ports = {port: str(free_port()) for port in ("48899", "1883", "8080", "5020")}
        for site in (folder / "config" / "sites").glob("*.toml"):
            text = self._here(site.read_text())
            site.write_text(text if "\n[web]" in text else f"{text}\n[web]\nport = {self.ports['8080']}\n")
        path = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
        # what a make that runs these tests would tell the make of a block
        own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        self.environment = own | {"PATH": path, "COLUMNS": "120", "MPLBACKEND": "Agg"}
        self.service: subprocess.Popen[bytes] | None = None
        self.line: list[str] = []  # of the service: pkm, run, its site
        self.log = folder / "service.log"

    def _here(self, text: str) -> str:
        return PORTS.sub(lambda port: self.ports[port[1]], text)

    # -------------------------------------------------------------- blocks

    def do(self, block: Block) -> None:
        """Try a block; an AssertionError says what is not as written."""
        if block.language == "toml":
            self._toml(block)
        elif block.language == "json":
            rest = block.text.strip()
            while rest:
                _, end = json.JSONDecoder().raw_decode(rest)
                rest = rest[end:].strip()
        elif block.language == "python":
            self._printed([".venv/bin/python", "-c", self._here(block.text)], block, [])
        elif block.words == ["service"]:
            self._serve(block)
        else:
            if block.words == ["after"]:
                self.end()
            self._wait()
            for command, expected in _commands(block):
                self._printed(["bash", "-euo", "pipefail", "-c", self._here(command)], block, expected)

    def _printed(self, line: list[str], block: Block, expected: list[str]) -> None:
        done = subprocess.run(
            line, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}: {line[-1]}: exit code {done.returncode}\n{done.stdout}\n{self._said()}"
        here = [self._here(one) for one in expected]
        assert not here or matches(here, done.stdout), f"{block}: {line[-1]}: printed\n{done.stdout}"

    def _toml(self, block: Block) -> None:
        tables = tomllib.loads(block.text)
        for word in block.words:
            how, _, name = word.partition("=")
            assert how == "append", f"{block}: {word}"
            with (self.folder / name).open("a") as file:
                file.write("\n" + self._here(block.text))
        known = schema.Site.__annotations__ | schema.Machine.__annotations__
        for key, value in tables.items():
            assert key in known, f"{block}: {key}"
            msgspec.convert(value, list[schema.Leg] if key == "leg" else known[key])  # a page need not show all legs

    # -------------------------------------------------------------- service

    def _serve(self, block: Block) -> None:
        ((command, _),) = _commands(block)
        if command.startswith("make "):  # which would install what is installed: take what it runs then
            asked = ["make", "--dry-run", "--old-file=.venv/installed", *shlex.split(command)[1:]]
            lines = subprocess.run(
                asked, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
            ).stdout
            command = lines.strip().splitlines()[-1]
        line = shlex.split(command)
        if self.service and line[1:] == self.line[1:]:  # off, as after a start
            self._wait()
            for kind in ("acknowledge", "off"):
                asked = ["pkm", "request", kind, "--site", line[2]]
                subprocess.run(asked, cwd=self.folder, env=self.environment, capture_output=True, check=False)
            self._wait()
            return
        self.end()
        with self.log.open("wb") as log:
            self.service = subprocess.Popen(line, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        self.line = line
        end_s = time.monotonic() + PATIENCE_S
        while not self._answers() or "start → OFF" not in self._said():
            assert self.service.poll() is None and time.monotonic() < end_s, f"{block}: {command}\n{self._said()}"
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Does the gateway take requests?"""
        return "operator page" in self._said()

    def end(self) -> None:
        """Ctrl-C to the service, if there is one: it has to end in order."""
        if self.service:
            self.service.send_signal(signal.SIGINT)
            code, self.service = self.service.wait(PATIENCE_S), None
            assert code == 0, f"{self.line}: exit code {code}\n{self._said()}"

    def kill(self) -> None:
        """The service ends, in order or not."""
        if self.service and self.service.poll() is None:
            self.service.terminate()
            self.service.wait(PATIENCE_S)
        self.service = None

    def disturbed(self) -> bool:
        """Did the service meet a fault that a computer too busy for it makes?"""
        return any(sign in self._said() for sign in ("did not answer within", *(str(fault.name) for fault in BUSY)))

    def _said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def _wait(self) -> None:
        """As a reader does: until what was asked for before is done."""
        if not self.service:
            return
        site = tomllib.loads((self.folder / self.line[2]).read_text())
        ring = RingReader(self.folder / site["ring"]["path"])
        columns = [channel[0] for channel in ring.meta["channels"]]
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            row = dict(zip(columns, ring.read(max(ring.written - 1, 0), 1)[1][0].tolist(), strict=True))
            mode = Mode(int(row["mode"]))
            held = row["drives_enabled"] and abs(row["following_error_1_m"]) < 1e-4
            endless = mode is Mode.ACTIVE and not row["left_s"]
            if row["link"] == Link.UP and (mode in (Mode.OFF, Mode.FAULT) or (mode is Mode.READY and held) or endless):
                return
            time.sleep(0.02)
        raise AssertionError(f"{self.line}: {mode.name} for {PATIENCE_S} s\n{self._said()}")


def _commands(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that stand below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0] + "\n" + line, [])
        elif found:
            found[-1][1].append(line)
    assert found, f"{block}: no line with `$ `"
    return found
