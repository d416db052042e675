"""The record can only grow, says so when it was changed, and the steps it holds are a walk that can be walked."""

import hashlib
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.commands.commission import command
from controller.commissioning import record
from controller.commissioning.record import Entry, Said, Trouble
from controller.commissioning.steps import STEPS
from controller.errors import ConfigurationError
from tests.machines import ROOT, own_site
from tests.shell import pkm, refused

HASHES = ("a" * 64, "b" * 64)


def entry(step: str, verdict: record.Word = "pass", hashes: tuple[str, str] = HASHES) -> Entry:
    return Entry(step, verdict, "Lin", *hashes, record.now(), {"figure": 1.5})


def test_every_step_is_done_by_something_and_needs_only_what_comes_before() -> None:
    assert set(command.DONE_BY) == {step.name for step in STEPS}
    seen: set[str] = set()
    for step in STEPS:
        assert set(step.needs) <= seen and step.shows and step.how and step.passes
        seen.add(step.name)
    # nothing moves before the link was looked at
    assert all(step.needs for step in STEPS if step.moves)


def test_entries_come_back_as_they_were_written_each_with_the_digest_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.jsonl"
    assert record.read(path) == []
    written = [record.append(path, entry(step.name)) for step in STEPS]
    assert record.read(path) == written
    lines = path.read_bytes().splitlines()
    for before, line in pairwise(lines):
        assert msgspec.json.decode(line)["before_sha256"] == hashlib.sha256(before).hexdigest()


@given(st.data())
def test_a_line_that_is_changed_left_out_or_put_in_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("r") / "record.jsonl"
    for step in STEPS[:5]:
        record.append(path, entry(step.name))
    lines = path.read_bytes().splitlines()
    at = data.draw(st.integers(0, 3))  # the last line is held by the protocol alone
    if data.draw(st.booleans()):
        changed = [*lines[:at], lines[at].replace(b"1.5", b"1.6"), *lines[at + 1 :]]
    else:
        changed = [*lines[:at], *lines[at + 1 :]]
    path.write_bytes(b"\n".join(changed) + b"\n")
    with pytest.raises(ConfigurationError, match="does not follow"):
        record.read(path)
    with pytest.raises(ConfigurationError):
        record.append(path, entry("files"))


def test_other_files_make_every_step_due_again_and_the_last_word_on_a_step_counts() -> None:
    entries = [entry(step.name) for step in STEPS]
    assert record.missing(record.standing(entries, *HASHES)) == []
    assert record.missing(record.standing(entries, "c" * 64, HASHES[1])) == [step.name for step in STEPS]
    entries += [entry("legs", "finding"), entry("check", "waived")]
    assert record.missing(record.standing(entries, *HASHES)) == ["legs"]


class Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words = ""

    def handle_data(self, data: str) -> None:
        self.words += data + " "


def test_the_protocol_shows_every_step_with_its_names_and_no_text_becomes_a_tag() -> None:
    entries = [entry(step.name) for step in STEPS]
    said = [Said("<b>Go</b>?", "yes & no", "Lin", record.now())]
    bad = msgspec.structs.replace(entries[7], verdict="finding", findings=[Trouble("cell_3 <turned>", "turn")])
    entries[7] = msgspec.structs.replace(entries[7], answers=said)
    entries = [bad, *entries, entry(record.ACCEPTED)]
    page = record.protocol("site", entries, record.standing(entries, *HASHES), "d" * 64)
    text = Text()
    text.feed(page)
    for step in STEPS:
        assert step.name in text.words
    for words in ("<b>Go</b>?", "yes & no", "cell_3 <turned>", "d" * 64, *HASHES, "Lin"):
        assert words in text.words
    assert "<b>Go" not in page


def test_what_is_wrong_before_anything_is_done_is_one_sentence(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(own_site(tmp_path))
    refused(pkm("commission", site, "--engineer", "Lin", "--again", "leg"), 2, "--again", "'leg'", "legs")
    refused(pkm("commission", site), 2, "--engineer")
    protocol = ("--protocol", str(tmp_path / "p.html"), "--user", "lin")
    refused(pkm("commission", site, *protocol), 2, "not passed", "files, doctor")
    shown = pkm("commission", site, "--show")
    assert shown.code == 0 and all(step.name in shown.out for step in STEPS)
    (tmp_path / "a.toml").write_text("pressed = ")
    refused(pkm("commission", site, "--engineer", "Lin", "--answers", tmp_path / "a.toml"), 2, "a.toml", "TOML")
    real = ROOT / "config" / "sites" / "hardware.toml"
    refused(pkm("commission", real, "--engineer", "Lin", "--yes", "--record", tmp_path / "r.jsonl"), 2, "--yes")
    assert not (tmp_path / "r.jsonl").exists()


def test_without_a_service_the_walk_goes_as_far_as_it_can_and_keeps_that(tmp_path: Path) -> None:
    site, kept = tmp_path / "site.toml", tmp_path / "r.jsonl"
    site.write_text(own_site(tmp_path))
    asked = ("commission", site, "--engineer", "Lin", "--yes", "--seconds", "0.1", "--record", kept)
    first = pkm(*asked)
    assert first.code == 3 and "pkm run" in first.err and "Traceback" not in first.err
    assert [item.step for item in record.read(kept)] == ["files", "doctor"]
    again = pkm(*asked)
    assert again.code == 3 and "done  files" in again.out
    assert len(record.read(kept)) == 2
    assert pkm(*asked, "--to", "doctor").code == 0
    assert pkm(*asked, "--to", "doctor", "--again", "files").code == 0
    assert [item.step for item in record.read(kept)] == ["files", "doctor", "files"]
    site.write_text(site.read_text().replace("required = false", "required = false\n"))
    assert pkm(*asked).code == 3
    assert [item.step for item in record.read(kept)][3:] == ["files", "doctor"]
