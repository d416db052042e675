"""What the configuration of a site was, from its first start on: kept at a start where it is another than before.

Kept is the text of every file it consists of, in one file of JSON each time, `configurations/SITE/NNNNNN-HASH.json`
beside the recordings. Recordings hold the configuration of their run too, but without device profiles, and the oldest
recordings are removed; this is small and stays. The files name where secrets are and hold none (the schema has no
place for one), so none is kept.
"""

import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from controller import __version__, schema
from controller.settings import SiteFiles, text_of
from controller.units import unit_of

MOST = 200  # kept configurations of a site; then the oldest go
MOST_BYTES = 64 * 1024 * 1024  # of all of them: tables of tracks may be long
TOLD = 8  # changes in a line of the log
LONGEST_VALUE = 60

log = logging.getLogger(__name__)


class Kept(msgspec.Struct, frozen=True):
    """The configuration of the starts from `unix_s` on, until the next one that is kept."""

    unix_s: float
    sha256: str
    version: str  # of the program
    texts: dict[str, str]  # see `texts`


class Change(NamedTuple):
    """A key that is another; one of a file that is no TOML is empty."""

    file: str
    key: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{' '.join(part for part in (self.file, self.key) if part)}: {self.old} → {self.new}"


# ---------------------------------------------------------------- pure


def texts(files: SiteFiles) -> dict[str, str]:
    """The text of every file that a run depends on, by what it is: site, machine, devices.NAME, tracks.NAME.

    Raises:
        ConfigurationError: a profile cannot be read.
    """
    profiles = {name: text_of(files.path.parent / device.profile) for name, device in files.site.devices.items()}
    return {
        "site": files.site_text,
        "machine": files.machine_text,
        **{f"devices.{name}": text for name, text in profiles.items()},
        **{f"tracks.{name}": text for name, text in files.track_texts.items()},
    }


def digest(found: Mapping[str, str]) -> str:
    """The hash that tells two configurations apart, in hexadecimal."""
    return sha256(msgspec.json.encode(dict(found), order="sorted")).hexdigest()


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    """What differs from one configuration to another, file by file and key by key; comments and layout are nothing."""
    found: list[Change] = []
    for file in dict.fromkeys([*old, *new]):
        if old.get(file) == new.get(file):
            continue
        was, now = _values(old.get(file)), _values(new.get(file))
        found += [
            Change(file, key, was.get(key, "left out"), now.get(key, "left out"))
            for key in dict.fromkeys([*was, *now])
            if was.get(key) != now.get(key)
        ]
    return found


def sentence(found: Sequence[Change], most: int = TOLD) -> str:
    """Changes in one line."""
    if not found:
        return "comments or layout only"
    more = f"; and {len(found) - most} more" if len(found) > most else ""
    return "; ".join(map(str, found[:most])) + more


def _values(text: str | None) -> dict[str, str]:
    """What a file says, key by key, with units; a file that is no TOML is one value."""
    if text is None:
        return {}
    try:
        return {key: _shown(key, value) for key, value in _flat(tomllib.loads(text), "")}
    except (ValueError, RecursionError):
        return {"": f"{len(text.splitlines())} lines, sha256 {sha256(text.encode()).hexdigest()[:12]}"}


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from _flat(item, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in cast("list[Any]", value)):
        for i, item in enumerate(cast("list[Any]", value)):
            yield from _flat(item, f"{key}[{i}]")
    else:
        yield key, value


def _shown(key: str, value: Any) -> str:
    text = msgspec.json.encode(value).decode() if isinstance(value, bool | str | list) else str(value)
    text = text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… (sha256 {_short(text)})"
    unit = "" if isinstance(value, bool | str) else unit_of(key.rpartition(".")[2])
    return f"{text} {unit}" if unit and unit != "1" else text


def _short(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]


# ---------------------------------------------------------------- files


def folder_of(site: schema.Site) -> Path:
    """Where the configurations of a site are kept."""
    return Path(site.recording.folder) / "configurations" / site.name


def kept(folder: Path) -> list[Kept]:
    """What is kept, oldest first; what cannot be read is left out."""
    return [found for path in _paths(folder) if (found := _read(path))]


def keep(site: schema.Site, found: Mapping[str, str], unix_s: float) -> None:
    """Keep a configuration unless it is the last one kept, and log what changed. Trouble is told and stops nothing."""
    folder, present = folder_of(site), Kept(unix_s, digest(found), __version__, dict(found))
    try:
        paths = _paths(folder)
        last = next((kept for path in reversed(paths) if (kept := _read(path))), None)
        if last and last.sha256 == present.sha256:
            return
        if last:
            changed = changes(last.texts, found)
            files = dict.fromkeys([*last.texts, *found])
            where = ", ".join(file for file in files if last.texts.get(file) != found.get(file))
            log.warning(
                "configuration %s → %s, changed in %s: %s",
                last.sha256[:12], present.sha256[:12], where, sentence(changed),
            )  # fmt: skip
        else:
            log.info("configuration %s is the first one kept in %s", present.sha256[:12], folder)
        number = int(paths[-1].name.partition("-")[0]) + 1 if paths else 1
        _write(folder / f"{number:06d}-{present.sha256[:12]}.json", msgspec.json.format(msgspec.json.encode(present)))
        _tidy(folder)
    except OSError as error:
        log.warning("the configuration could not be kept in %s: %s", folder, error.strerror)


def steps(found: Sequence[Kept]) -> Iterator[tuple[Kept, list[Change] | None]]:
    """Each of what is kept with what changed by it; None of the first."""
    if found:
        yield found[0], None
    for old, new in pairwise(found):
        yield new, changes(old.texts, new.texts)


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if re.fullmatch(r"\d{6,}-[0-9a-f]{12}\.json", path.name))


def _read(path: Path) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _tidy(folder: Path) -> None:
    """The newest stay, however large it is."""
    paths = _paths(folder)
    size = sum(path.stat().st_size for path in paths)
    for path in paths[:-1]:
        if len(_paths(folder)) <= MOST and size <= MOST_BYTES:
            return
        size -= path.stat().st_size
        path.unlink()
