"""`pkm config SITE.toml history`, `diff`: what the configuration of a site was, and what changed."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from controller.errors import ConfigurationError
from controller.gateway.recording.shelf import listing
from controller.recording import description
from controller.service import history
from controller.service.history import Kept
from controller.settings import load_site

SHOWN = 12  # characters of a hash
FEWEST = 4
TOLD = 3  # changes in a line of the history


def show_history(path: Path, as_json: bool, out: TextIO) -> None:
    """What is kept of a site's configurations, oldest first: when, which, how many recordings there are, what changed.

    Raises:
        ConfigurationError: the site file cannot be used.
    """
    site = load_site(path).site
    found, runs = history.kept(history.folder_of(site)), _runs(Path(site.recording.folder))
    if as_json:
        rows = [
            {"unix_s": kept.unix_s, "sha256": kept.sha256, "version": kept.version, "runs": runs[kept.sha256],
             "changes": None if changed is None else [change._asdict() for change in changed]}
            for kept, changed in history.steps(found)
        ]  # fmt: skip
        out.write(json.dumps(rows) + "\n")
        return
    lines = [("since (UTC)", "hash", "version", "runs", "changed")]
    for kept, changed in history.steps(found):
        since = datetime.fromtimestamp(kept.unix_s, UTC)
        told = "the first one" if changed is None else history.sentence(changed, TOLD)
        lines.append((f"{since:%Y-%m-%d %H:%M:%S}", kept.sha256[:SHOWN], kept.version, str(runs[kept.sha256]), told))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        out.write("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n")


def show_diff(path: Path, old: str, new: str, out: TextIO) -> bool:
    """Print the keys that differ, a line each; True if there are any, or anything else is not the same.

    `old` and `new` are beginnings of hashes; without `old` it is the newest that is kept, without `new` the files as
    they are now.

    Raises:
        ConfigurationError: the site file cannot be used, nothing is kept, or no hash begins like that.
    """
    files = load_site(path)
    found = history.kept(history.folder_of(files.site))
    if not found:
        raise ConfigurationError(f"{path}: no configuration of this site is kept yet: the first start keeps it")
    before = _named(found, old) if old else found[-1]
    after = _named(found, new).texts if new else history.texts(files)
    changed = history.changes(before.texts, after)
    for change in changed:
        out.write(f"{change}\n")
    if not changed:
        same = before.texts == after
        out.write("the same\n" if same else "no key differs: comments or layout only\n")
    return before.texts != after


def _named(found: Sequence[Kept], beginning: str) -> Kept:
    alike = [kept for kept in found if kept.sha256.startswith(beginning.lower())] if len(beginning) >= FEWEST else []
    if not alike:
        raise ConfigurationError(
            f"found {beginning!r}, expected {FEWEST} or more characters of a hash that `pkm config SITE history` shows"
        )
    if len({kept.sha256 for kept in alike}) > 1:
        raise ConfigurationError(f"{len(alike)} hashes begin with {beginning!r}: give more of it")
    return alike[-1]


def _runs(folder: Path) -> Counter[str]:
    """How many recorded runs there are of each configuration."""
    found: Counter[str] = Counter()
    for recorded in listing(folder):
        if recorded.kind == "run":
            with suppress(OSError, ValueError):
                found[str(description(folder / f"{recorded.name}.mcap").get("configuration_sha256"))] += 1
    return found
