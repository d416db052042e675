"""Every code block of the documentation does what stands there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import Block, Desk, blocks, matches, pages
from tests.machines import ROOT

RUN = ("console", "python", "toml", "json")
NOT_RUN_AT_MOST = 9  # blocks that need root or hardware
ALL = {page: blocks(page) for page in pages()}


def _service(page: Path) -> tuple[str, bool]:
    """The first service of a page, and does it end it: pages that share one follow each other, the last ends it."""
    words = {word: block.text for block in reversed(ALL[page]) for word in block.words}
    return words.get("service", ""), "after" in words


TRIED = sorted((page for page, found in ALL.items() if any(block.language in RUN for block in found)), key=_service)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    yield desk
    desk.kill()


@pytest.mark.timeout(600)  # of a busy computer; all pages together take a minute and a half
@pytest.mark.parametrize("page", TRIED, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_do_what_stands_there(desk: Desk, page: Path) -> None:
    for attempts_left in (2, 1, 0):
        try:
            for block in ALL[page]:
                if block.language in RUN:
                    desk.do(block)
        except AssertionError:
            if not attempts_left or not desk.disturbed():  # a busy computer is no fault of the page
                raise
            desk.kill()
        else:
            return


def test_every_block_is_of_a_kind_that_is_known_and_few_are_not_run() -> None:
    found: list[Block] = [block for page in ALL.values() for block in page]
    unknown = [f"{block}: {block.language!r}" for block in found if block.language not in (*RUN, "text", "sh")]
    assert not unknown
    assert sum(block.language == "sh" for block in found) <= NOT_RUN_AT_MOST


def test_expected_output_is_compared() -> None:
    assert matches(["a ... c", "..."], "a b c\nd\ne")
    assert not matches(["a ... c"], "a b d")
    assert not matches(["a"], "a\nb")


def test_a_block_that_is_wrong_is_found(desk: Desk) -> None:
    page = ROOT / "README.md"
    for block in (
        Block(page, 1, "console", [], "$ false\n"),
        Block(page, 1, "console", [], "$ echo one\ntwo\n"),
        Block(page, 1, "toml", [], "[nothing]\n"),
        Block(page, 1, "python", [], "raise SystemExit(1)\n"),
    ):
        with pytest.raises(AssertionError):
            desk.do(block)
