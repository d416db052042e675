"""The site is whole: it builds, links lead somewhere, what is made from the code is what the code says."""

import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from controller.records import Fault
from controller.safety.faults import FAULTS
from tests.machines import ROOT

DOCS = ROOT / "docs"
FOLDERS = ("config", "docs", "deploy")
READ = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_what_is_made_from_the_code_is_what_the_code_says() -> None:
    line = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    options = ["-W", "--keep-going", "-n", "-q", "-b", "html"]
    line = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(tmp_path / "site")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in DOCS.rglob("*.md"):
        assert (tmp_path / "site" / page.relative_to(DOCS).with_suffix(".html")).exists(), page


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    wrong: list[str] = []
    for target in LINK.findall(_prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (heading and heading not in _headings(file)):
            wrong.append(target)
    assert not wrong


def test_every_fault_says_what_to_do() -> None:
    text = (DOCS / "reference" / "faults.md").read_text()
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == {str(fault.name) for fault in FAULTS} == {str(fault.name) for fault in Fault if fault}
    for name, section in sections.items():
        said = dict(re.findall(r"^\*\*([\w ]+)\.\*\* (.*?)(?=^\*\*|\Z)", section, re.MULTILINE | re.DOTALL))
        assert list(said) == ["Cause", "Look at", "Mend", "Acknowledge"], name
        assert all(len(words.split()) >= 3 for words in said.values()), name


def test_every_machine_has_a_page_with_its_drawing() -> None:
    for machine in (ROOT / "config" / "machines").glob("*.toml"):
        page = (DOCS / "explanation" / "mechanisms" / f"{machine.stem}.md").read_text()
        assert f"({machine.stem}.svg)" in page
        assert f"<!-- machine: {machine.stem} -->" in page


def _prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def _headings(page: Path) -> set[str]:
    """The anchors of a page, as the site and the usual hosts of repositories make them."""
    plain = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", plain, re.MULTILINE):
        kept = [c for c in heading.lower() if c in "-_ " or unicodedata.category(c)[0] in "LN"]
        found.add("".join(kept).replace(" ", "-"))
    return found
