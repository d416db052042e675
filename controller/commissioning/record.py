"""The record of a commissioning: JSON lines that are only ever added to, and the protocol made of them.

Every line holds the digest of the line before. A line that is changed, left out or put in breaks the chain at the next
one, and the digest of the whole, which stands in the protocol, differs.
"""

import hashlib
import html
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from controller.commissioning.steps import STEPS
from controller.errors import ConfigurationError

GOOD = ("pass", "waived")
ACCEPTED = "acceptance"  # the step that only the protocol takes

Word = Literal["pass", "waived", "finding", "fault", "stopped"]


class Said(msgspec.Struct, frozen=True):
    """A question, and what an engineer answered."""

    question: str
    answer: str
    by: str
    t: str  # UTC, ISO 8601


class Trouble(msgspec.Struct, frozen=True):
    """Something that is wrong, and the mend."""

    text: str
    mend: str = ""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came of a step once."""

    step: str
    verdict: Word
    engineer: str
    machine_sha256: str
    site_sha256: str
    t: str  # UTC, ISO 8601
    figures: dict[str, Any] = {}
    findings: list[Trouble] = []
    answers: list[Said] = []
    before_sha256: str = ""  # of the line before; empty at the first


def now() -> str:
    """The time of an entry."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def digest(data: str | bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def read(path: Path) -> list[Entry]:
    """The entries of a record, none if there is no such file.

    Raises:
        ConfigurationError: it is no record, or not as it was written; says from which line on.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    entries, before = list[Entry](), ""
    for number, line in enumerate(lines, 1):
        try:
            entry = msgspec.json.decode(line, type=Entry)
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigurationError(f"{path}: line {number} is no entry of a record: {error}") from None
        if entry.before_sha256 != before:
            raise ConfigurationError(
                f"{path}: line {number} does not follow line {number - 1}: one of them was changed"
            )
        entries.append(entry)
        before = digest(line)
    return entries


def append(path: Path, entry: Entry) -> Entry:
    """Add an entry, through to the disk.

    Raises:
        ConfigurationError: the record cannot be written, or is not as it was.
    """
    read(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines() if path.exists() else []
        entry = msgspec.structs.replace(entry, before_sha256=digest(lines[-1]) if lines else "")
        with path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None
    return entry


def standing(entries: Sequence[Entry], machine_sha256: str, site_sha256: str) -> dict[str, Entry]:
    """The last entry of every step that was done with these files."""
    return {
        entry.step: entry
        for entry in entries
        if (entry.machine_sha256, entry.site_sha256) == (machine_sha256, site_sha256)
    }


def missing(done: dict[str, Entry]) -> list[str]:
    """Steps that have not passed."""
    return [step.name for step in STEPS if step.name not in done or done[step.name].verdict not in GOOD]


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2330 }
table { border-collapse: collapse; width: 100% } td, th { border: 1px solid #c5ccd4; padding: .3rem .5rem;
text-align: left; vertical-align: top; font-size: .9rem } code { font-size: .8rem; overflow-wrap: anywhere }
@media print { body { margin: 0 } }
"""


def protocol(name: str, entries: Sequence[Entry], done: dict[str, Entry], record_sha256: str) -> str:
    """The acceptance protocol as one page of HTML: every step with figures, findings, answers, names and times.

    `entries` is the whole record, `done` what stands (see `standing`), with the acceptance.
    """

    def cell(*parts: str) -> str:
        return "<td>" + "<br>".join(html.escape(part) for part in parts if part) + "</td>"

    accepted = done[ACCEPTED]
    rows: list[str] = []
    for step in STEPS:
        entry = done[step.name]
        answers = [f"{said.question} — {said.answer} ({said.by}, {said.t})" for said in entry.answers]
        figures = [f"{key}: {_figure(value)}" for key, value in entry.figures.items()]
        rows.append(
            f"<tr>{cell(step.name, step.shows)}{cell(entry.verdict)}{cell(*figures)}{cell(*answers)}"
            f"{cell(entry.engineer, entry.t)}</tr>"
        )
    mended: list[str] = []
    for entry in entries:
        if entry.findings:
            told = (f"{found.text}. Mend: {found.mend}." for found in entry.findings)
            mended.append(f"<tr>{cell(entry.t)}{cell(entry.step)}{cell(*told)}</tr>")
    found = (
        f"<table><tr><th>when</th><th>step</th><th>finding</th></tr>{''.join(mended)}</table>"
        if mended
        else "<p>There was none.</p>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(name)}: acceptance</title>'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(name)}: acceptance protocol</h1>"
        f"<p>Accepted by <b>{html.escape(accepted.engineer)}</b> on {accepted.t}.</p>"
        f"<table><tr><th>machine file, SHA-256</th><td><code>{accepted.machine_sha256}</code></td></tr>"
        f"<tr><th>site file, SHA-256</th><td><code>{accepted.site_sha256}</code></td></tr>"
        f"<tr><th>record, SHA-256</th><td><code>{record_sha256}</code> ({len(entries)} lines)</td></tr></table>"
        "<h2>Steps</h2><table><tr><th>step</th><th>verdict</th><th>figures</th><th>questions and answers</th>"
        f"<th>engineer, time</th></tr>{''.join(rows)}</table>"
        f"<h2>Findings on the way, all mended</h2>{found}"
        "<p>The record is whole as long as <code>sha256sum</code> of it gives the digest above.</p></body></html>\n"
    )


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_figure, value))  # pyright: ignore[reportUnknownArgumentType]
    return str(value)
