"""`pkm commission`: from a wired machine to an accepted one, step by step, with a record of all of it.

The steps and what they need are data (`controller.commissioning.steps`); how each is done stands beside this. Whatever
moves is asked for at the gateway, as any request is, after the engineer has agreed; Ctrl-C stops the machine and keeps
the record.
"""

import math
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TextIO

from controller.commands.commission import at_rest, by_legs, in_motion
from controller.commands.commission.walk import Declined, Engineer, Outcome, Walk
from controller.commands.request import ask, local_token, login
from controller.commissioning import record
from controller.commissioning.record import ACCEPTED, Entry, Said, Trouble
from controller.commissioning.service import Service
from controller.commissioning.steps import STEPS, Step
from controller.errors import ConfigurationError, DeviceError, RunError
from controller.gateway.accounts import Accounts, Refused, may
from controller.identification.new_file import write_new
from controller.settings import SiteFiles, load_site, text_of
from controller.state import prepare

FAULT, FINDING = RunError.exit_code, ConfigurationError.exit_code

DONE_BY: dict[str, Callable[[Walk], Outcome]] = {
    "files": at_rest.files, "doctor": at_rest.doctor, "link": at_rest.link, "sensors": at_rest.sensors,
    "static": at_rest.static, "homing": in_motion.homing, "hold": in_motion.hold, "legs": by_legs.legs,
    "check": in_motion.check, "limits": in_motion.limits, "stop": in_motion.stop, "tracking": in_motion.tracking,
    "identification": at_rest.identification,
}  # fmt: skip


class Options(NamedTuple):
    """What the command line says."""

    site: Path
    engineer: str = ""
    answers: Path | None = None
    yes: bool = False
    again: tuple[str, ...] = ()
    last: str = ""  # the last step to be done; empty: all
    seconds: float = 10.0
    record: Path | None = None
    user: str = ""
    show: bool = False


def commission(options: Options, password: Callable[[str], str], out: TextIO) -> int:
    """Walk through the steps that are due; the exit code.

    Raises:
        PkmError: a file or an answer is wrong, or nobody answers.
    """
    files = load_site(options.site)
    names = [step.name for step in STEPS]
    for given, key in ((options.again, "--again"), ((options.last,) if options.last else (), "--to")):
        if unknown := set(given) - set(names):
            raise ConfigurationError(f"{key}: found {min(unknown)!r}, expected a step: {', '.join(names)}")
    path = options.record or record_path(files)
    hashes = record.digest(files.machine_text), record.digest(files.site_text)
    done = record.standing(record.read(path), *hashes)
    if options.show:
        _show(done, path, out)
        return 0
    given = _answers(options.answers)
    name = (options.engineer or given.pop("engineer", "")).strip() or (input("Name: ") if sys.stdin.isatty() else "")
    if not name:
        raise ConfigurationError("--engineer: found no name, expected that of who is responsible")
    if options.yes and files.site.virtual_cell is None:
        raise ConfigurationError("--yes: a real machine is not moved by it: somebody has to look, and to answer")
    requests = Path(files.site.requests.path)

    def connect() -> Service:
        user = options.user
        token = login(requests, user, password(user)) if user else local_token(requests)[1]
        return Service(files, lambda route, question: ask(requests, route, question, token))

    engineer = Engineer(name, given, options.yes, out)
    walk = Walk(files, prepare(files.machine, files.site, files.track_texts), engineer, options.seconds, connect, out)
    worst = 0
    try:
        for step in STEPS:
            known = done.get(step.name)
            if known and known.verdict in record.GOOD and step.name not in options.again:
                print(f"done  {step.name:<15} {known.t[:16]} by {known.engineer}", file=out)
                if step.name == options.last:
                    break
                continue
            due = [need for need in step.needs if need not in done or done[need].verdict not in record.GOOD]
            if due:
                print(f"wait  {step.name:<15} needs {', '.join(due)}", file=out)
                continue
            entry, code = _one(walk, step, hashes, path)
            done[step.name], worst = entry, max(worst, code)
            if entry.verdict == "fault" or step.name == options.last:
                break
    finally:
        if walk.found:
            walk.found.off()
    due = record.missing(done)
    print(f"record: {path}", file=out)
    if due:
        print(f"not passed: {', '.join(due)}", file=out)
        so_far = names[: names.index(options.last) + 1] if options.last else names
        return worst or (FINDING if set(due) & set(so_far) else 0)
    print("all steps have passed: --protocol FILE.html --user NAME accepts the machine", file=out)
    return worst


def _one(walk: Walk, step: Step, hashes: tuple[str, str], path: Path) -> tuple[Entry, int]:
    """One step, into the record; its entry and exit code."""
    print(f"step  {step.name:<15} {step.shows}", file=walk.out, flush=True)
    engineer = walk.engineer
    engineer.said = []
    blank = Entry(step.name, "stopped", engineer.name, *hashes, record.now())
    code = 0
    try:
        if step.moves and not (step.name == "homing" and walk.files.site.homing.method == "absolute"):
            walk.service  # noqa: B018  nobody is asked before there is something to move
            engineer.confirm(step.name, f"{step.moves}. Nobody within reach, emergency stop at hand. Go ahead?")
        outcome = DONE_BY[step.name](walk)
        word = "finding" if outcome.findings else "waived" if outcome.waived else "pass"
        entry = _filled(blank, word, outcome, engineer.said)
        code = FINDING if outcome.findings else 0
    except RunError as error:
        if walk.found:
            walk.found.stop()
        entry = _filled(blank, "fault", Outcome({}, [Trouble(str(error))]), engineer.said)
        code = FAULT
    except Declined as error:
        entry = _filled(blank, "stopped", Outcome({"why": str(error)}, []), engineer.said)
        code = FINDING
    except BaseException as error:
        if walk.found:
            walk.found.stop()
        if not isinstance(error, DeviceError) or walk.found:
            why = str(error) or type(error).__name__
            record.append(path, _filled(blank, "stopped", Outcome({"why": why}, []), engineer.said))
        raise
    record.append(path, entry)
    print(f"{entry.verdict:<5} {step.name}", file=walk.out)
    for trouble in entry.findings:
        print(f"      {trouble.text}" + (f"\n      → {trouble.mend}" if trouble.mend else ""), file=walk.out)
    return entry, code


def _filled(blank: Entry, verdict: record.Word, outcome: Outcome, said: list[Said]) -> Entry:
    """The entry of a step that was begun with `blank`."""
    figures = {key: None if isinstance(value, float) and not math.isfinite(value) else value
               for key, value in outcome.figures.items()}  # fmt: skip
    return Entry(
        blank.step, verdict, blank.engineer, blank.machine_sha256, blank.site_sha256, blank.t, figures,
        outcome.findings, list(said),
    )  # fmt: skip


def record_path(files: SiteFiles) -> Path:
    """Where the record of a site is, beside its recordings."""
    return Path(files.site.recording.folder) / "commissioning" / f"{files.site.name}.jsonl"


def _answers(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return {key: str(value) for key, value in tomllib.loads(text_of(path)).items()}
    except ValueError as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None


def _show(done: dict[str, Entry], path: Path, out: TextIO) -> None:
    for step in STEPS:
        entry = done.get(step.name)
        state = f"{entry.verdict}, {entry.t[:16]} by {entry.engineer}" if entry else "due"
        print(f"{step.name:<15} {state}\n{'':15} shows: {step.shows}\n{'':15} how: {step.how}", file=out)
        print(f"{'':15} passes: {step.passes}" + (f"\n{'':15} moves: {step.moves}" if step.moves else ""), file=out)
    print(f"record: {path}", file=out)


def accept(options: Options, target: Path, password: Callable[[str], str], out: TextIO) -> int:
    """Sign the record of a site by a user of it, and write the protocol.

    Raises:
        ConfigurationError: a step has not passed; the user is none, or no engineer; there is such a file already.
    """
    import asyncio

    files = load_site(options.site)
    path = options.record or record_path(files)
    entries = record.read(path)
    hashes = record.digest(files.machine_text), record.digest(files.site_text)
    done = record.standing(entries, *hashes)
    if due := record.missing(done):
        raise ConfigurationError(f"{path}: not passed with these files: {', '.join(due)}")
    if target.exists():
        raise ConfigurationError(f"{target}: there is such a file already, nothing is overwritten")
    if not (options.user and files.site.web.users):
        raise ConfigurationError("--user: found nobody, expected an engineer of web.users (`pkm user add`)")
    accounts = Accounts(Path(files.site.web.users), time.monotonic)
    token = asyncio.run(accounts.login(options.user, password(options.user), "shell"))
    session = None if isinstance(token, Refused) else accounts.session(token)
    if session is None or not may(session.role, "engineer"):
        why = token.text if isinstance(token, Refused) else "the role engineer is needed."
        raise ConfigurationError(f"--user: {options.user} cannot accept a machine: {why}")
    accepted = Entry(ACCEPTED, "pass", options.user, *hashes, record.now(), {"steps": [step.name for step in STEPS]})
    accepted = record.append(path, accepted)
    text = record.protocol(
        files.site.name, [*entries, accepted], done | {ACCEPTED: accepted}, record.digest(path.read_bytes())
    )
    write_new(target, text)
    print(f"{target}: accepted by {options.user}; record {path}, SHA-256 {record.digest(path.read_bytes())}", file=out)
    return 0
