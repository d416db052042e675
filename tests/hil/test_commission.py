"""A new user follows the guide against a virtual machine with three mistakes: each is found and named, mended, gone."""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.commands.commission.command import record_path
from controller.commissioning import record
from controller.commissioning.steps import STEPS
from controller.records import Mode
from controller.ring import RingReader
from controller.settings import load_site
from tests.docs.blocks import Block, Desk, _commands, blocks, matches
from tests.gateway.bench import wait_until
from tests.machines import ROOT

PAGE = ROOT / "docs" / "how-to" / "commission.md"
PATIENCE_S = 100.0
BUSY = ("STATUS_LATE", "STATUS_STALE", "OVERRUN", "LINK_LOST", "PLC_STOPPED", "went round", "stopped on its way")


class Reader:
    """Someone with the guide, and as many terminals as it takes."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk(folder)
        self.background: list[subprocess.Popen[bytes]] = []

    def follow(self, block: Block) -> None:
        """Type what stands there; the number after `walk` is the exit code of the last command."""
        code = int(block.words[1]) if len(block.words) > 1 else 0
        commands = _commands(block)
        for number, (command, expected) in enumerate(commands):
            if command.endswith("&"):
                self._start(command.removesuffix("&"), expected[0])
            else:
                self._type(command, expected, code if number == len(commands) - 1 else 0)

    def _start(self, command: str, sign: str) -> None:
        log = self.desk.folder / f"terminal-{len(self.background)}.log"
        with log.open("wb") as file:
            line = ["bash", "-c", f"exec {command}"]
            self.background.append(
                subprocess.Popen(line, cwd=self.desk.folder, env=self.desk.environment, stdout=file, stderr=file)
            )
        end_s = time.monotonic() + PATIENCE_S
        while sign not in log.read_text():
            assert self.background[-1].poll() is None and time.monotonic() < end_s, log.read_text()
            time.sleep(0.05)

    def _type(self, command: str, expected: list[str], code: int) -> None:
        for attempts_left in (3, 2, 1, 0):
            done = subprocess.run(
                ["bash", "-c", command], cwd=self.desk.folder, env=self.desk.environment, capture_output=True,
                text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            busy = any(sign in done.stdout + done.stderr for sign in BUSY)  # a loaded computer is no finding
            if done.returncode != 4 or not busy or not attempts_left:
                break
            time.sleep(1.0)
            acknowledge = ["pkm", "request", "acknowledge", "--site", "config/sites/new.toml"]
            subprocess.run(
                acknowledge, cwd=self.desk.folder, env=self.desk.environment, capture_output=True, check=False
            )
        assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        again = attempts_left < 3  # what passed before the fault is not told again
        assert not expected or again or matches(expected, done.stdout), f"{command}: printed\n{done.stdout}"

    def leave(self) -> None:
        for process in reversed(self.background):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30.0)
            process.kill()
            process.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    someone = Reader(tmp_path)
    yield someone
    someone.leave()


@pytest.mark.timeout(400)  # of a busy computer; an idle one takes a minute and a half
def test_the_guide_finds_three_mistakes_names_them_and_ends_with_a_protocol(reader: Reader) -> None:
    for block in blocks(PAGE):
        if block.language in ("console", "toml"):
            reader.desk.do(block)
        elif block.words[:1] == ["walk"]:
            reader.follow(block)

    site = reader.desk.folder / "config" / "sites" / "new.toml"
    files = load_site(site)
    path = reader.desk.folder / record_path(files)
    entries = record.read(path)
    done = record.standing(entries, record.digest(files.machine_text), record.digest(files.site_text))
    assert record.missing(done) == [] and len(done) == len(STEPS) + 1

    def told(step: str) -> list[list[str]]:
        return [[trouble.text for trouble in entry.findings] for entry in entries
                if entry.step == step and entry.verdict != "fault"]  # fmt: skip

    static, legs = told("static"), told("legs")
    assert [len(found) for found in static] == [1, 0] and "cell_3 has the wrong sign" in static[0][0]
    assert [len(found) for found in legs] == [3, 1, 0]
    assert "cell_3" in legs[0][0] and "legs 2 and 5" in legs[0][1]
    for found in (legs[0][2], legs[1][0]):
        factor, error = map(float, re.search(r"leg 4 goes ([\d.]+) ± ([\d.]+)", found).groups())  # type: ignore[union-attr]
        assert abs(factor - 0.8) < 4.0 * error < 0.1
    figures = done["stop"].figures
    assert figures["took_s"] < figures["planned_s"] + 0.1
    assert max(done["tracking"].figures["peak_m"]) < 1.5e-3
    assert done["limits"].figures["answer"].startswith("UNREACHABLE")
    protocol = (reader.desk.folder / "accepted.html").read_text()
    assert record.digest(path.read_bytes()) in protocol and done["acceptance"].engineer == "lin"

    # Ctrl-C in the middle of the moves: the machine stops, its drives go off, and the record says so
    line = ["pkm", "commission", str(site), "--engineer", "lin", "--yes", "--again", "legs"]
    ring = RingReader(reader.desk.folder / files.site.ring.path)
    mode = [channel[0] for channel in ring.meta["channels"]].index("mode")
    asked = subprocess.Popen(line, cwd=reader.desk.folder, env=reader.desk.environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: ring.read(ring.written - 1)[1][-1, mode] == Mode.ACTIVE, 60.0)
    asked.send_signal(signal.SIGINT)
    assert asked.wait(30.0) == 130
    assert ring.read(ring.written - 1)[1][-1, mode] == Mode.OFF
    ring.close()
    assert (record.read(path)[-1].step, record.read(path)[-1].verdict) == ("legs", "stopped")
