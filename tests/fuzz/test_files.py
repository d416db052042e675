"""Files with anything wrong in them: what is read is what was written, or one sentence says why it is not."""

import contextlib
import csv
import io
import math
import re
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import schema
from controller.commands.runs import recover_all
from controller.errors import ConfigurationError
from controller.gateway.recording.recorder import Recorder, recover
from controller.gateway.recording.shelf import listing, snapshot
from controller.lint.geometry import lint
from controller.recording import blocks, parts, read
from controller.recording import events as recorded_events
from controller.records import POSE
from controller.ring import RingReader, RingWriter
from controller.settings import load_machine, load_site
from controller.state import prepare
from drivers import profile
from tests.fuzz.mutations import EDITS, mutated
from tests.gateway.bench import COLUMNS, make_meta, make_rows, make_site
from tests.machines import MACHINES, ROOT, SIMULATION
from tests.shell import Result, pkm

# ---------------------------------------------------------------- TOML

ODD = [
    "nan", "-inf", "1e308", "-1e308", "1e999", "5e-324", "0", "-1", "9" * 30, "1" * 5000, "0x" + "f" * 4000, "true",
    '""', '"x"', '"a\\u0000b"', '"a\\nb"', '"' + "y" * 3000 + '"', '"h:99999"', '"999.1.1.1.1.1"', "1979-05-27", "[]",
    "{}", "[[]]", "[1.0]", "[0.0, 0.0, 0.0]", "[nan, 0.0]", "[1e308, -1e308, 1e308]", "[" * 1200 + "]" * 1200,
    "{a=" * 1200 + "1" + "}" * 1200, "",
]  # fmt: skip
LINES = st.lists(
    st.tuples(st.integers(0, 500), st.sampled_from(["delete", "repeat", *map("value {}".format, range(len(ODD)))])),
    min_size=1,
    max_size=3,
)
NEW_KEY = st.sampled_from(["", 'colour = "red"', '"a\\nb" = 1', ".".join("a" * 1500) + " = 1", '"` - at `$.x" = 3'])


def rewritten(text: str, changes: list[tuple[int, str]], new: str) -> bytes:
    """The text of a TOML file with lines deleted, repeated, or with another value, and perhaps a key of its own."""
    lines = text.splitlines()
    for number, what in changes:
        at = number % len(lines)
        key, equals, _ = lines[at].partition(" = ")
        if what == "delete":
            lines[at] = ""
        elif what == "repeat":
            lines.insert(at, lines[at])
        elif equals:
            lines[at] = f"{key} = {ODD[int(what.split()[1])]}"
    return "\n".join([new, *lines]).encode()


def numbers(value: object) -> list[float]:
    """All numbers in a configuration."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list | tuple):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, int | float) else []


def accepted(path: Path, loader, data: bytes):
    """What the loader makes of the file; None if it is refused with one sentence that names the file."""
    path.write_bytes(data)
    try:
        found = loader(path)
    except ConfigurationError as error:
        sentence = str(error)
        # a site names a machine, which may be the file that is wrong
        assert sentence.startswith(str(path)) or (loader is site_of and re.match(r"/.*: ", sentence))
        assert len(sentence.splitlines()) == 1 and len(sentence) < 5000
        return None
    assert all(map(math.isfinite, numbers(msgspec.to_builtins(found))))
    return found


def machine_of(path: Path) -> schema.Machine:
    return load_machine(path)[0]


def site_of(path: Path) -> schema.Site:
    return load_site(path).site


FILES = [
    *((path, machine_of) for path in sorted(MACHINES.glob("*.toml"))),
    (SIMULATION, site_of),
    *((path, profile.load) for path in sorted((ROOT / "config" / "devices").glob("*.toml"))),
]


@pytest.mark.parametrize(("shipped", "loader"), FILES, ids=[path.stem for path, _ in FILES])
def test_a_configuration_is_valid_or_one_sentence_says_what_is_wrong(tmp_path: Path, shipped: Path, loader) -> None:
    text, path = shipped.read_text().replace("../", f"{ROOT}/config/"), tmp_path / shipped.name
    assert accepted(path, loader, text.encode())

    @settings(max_examples=40)
    @given(st.builds(rewritten, st.just(text), LINES, NEW_KEY) | st.builds(mutated, st.just(text.encode()), EDITS))
    def check(data: bytes) -> None:
        accepted(path, loader, data)

    check()


@pytest.mark.parametrize("name", ["a\\n", "a\\u0000", "A", "", "-a", "a b", "\u0661"])
def test_a_name_is_lower_case_letters_digits_and_dashes(tmp_path: Path, name: str) -> None:
    for shipped, loader in FILES:
        text = re.sub('(?m)^name = ".*"', lambda _: f'name = "{name}"', shipped.read_text(), count=1)
        assert accepted(tmp_path / shipped.name, loader, text.encode()) is None


@settings(max_examples=25)
@given(LINES, st.just(""))
def test_a_valid_machine_is_sound_or_told_what_is_wrong(changes: list[tuple[int, str]], new: str) -> None:
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        text = (MACHINES / "6-ups.toml").read_text()
        machine = accepted(Path(folder) / "machine.toml", machine_of, rewritten(text, changes, new))
        if machine is None:
            return
        problems = lint(machine)
        assert all(problem and len(problem.splitlines()) == 1 for problem in problems)
        if not problems:
            prepare(machine, load_site(SIMULATION).site)


# ---------------------------------------------------------------- CSV

POSES = f"t_s,{','.join(POSE)}\n0.0,0.0,0.0,0.85,0.0,0.0,0.0\n0.01,0.01,-0.02,0.86,0.1,-0.1,0.05\n"
RATES = [f"{name}{suffix}" for suffix in ("_s", "_s2") for name in POSE]
MOTIONS = (
    f"{','.join([*POSE, *RATES])}\n0.0,0.0,0.85,0.0,0.0,0.0{',0.1' * 12}\n0.0,0.01,0.85,0.0,0.1,0.0{',0.0' * 12}\n"
)
LENGTHS = f"{','.join(f'length_{i}_m' for i in range(1, 7))}\n{','.join(['0.935'] * 6)}\n{','.join(['0.94'] * 6)}\n"
CELLS = st.sampled_from([
    "nan", "inf", "1e308", "-1e308", "1e-320", "1_0", "\u0661", "0x10", "np.float64(0.1)", "np.float64(0.1", "", '"',
    "\0", "\r", "1" * 200_000, "1e400", "--1", " 0.1 ", "x",
])  # fmt: skip


def with_cells(text: str, changes: list[tuple[int, str]]) -> bytes:
    """The table with other texts in some of its cells."""
    rows = [line.split(",") for line in text.splitlines()]
    for place, cell in changes:
        row = rows[1 + place % (len(rows) - 1)]
        row[place % len(row)] = cell
    return "\n".join(map(",".join, rows)).encode()


def table(command: str, machine: str, data: bytes) -> Result:
    """The command with these bytes on standard input; the machine is known to be sound."""
    given_ = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    with (
        mock.patch("controller.lint.geometry.require_sound"),
        mock.patch("tests.shell.io.StringIO", side_effect=[io.StringIO(), io.StringIO(), given_]),
    ):
        return pkm(command, MACHINES / f"{machine}.toml")


@pytest.mark.parametrize(
    ("command", "machine", "text"),
    [
        ("legs", "6-upru", POSES),
        ("legs", "6-uhu", POSES),
        ("forces", "6-upru", MOTIONS),
        ("forces", "3-ups-s", MOTIONS),
        ("pose", "6-upru", LENGTHS),
        ("pose", "6-uhu", LENGTHS),
    ],
)
def test_a_table_gives_finite_numbers_or_one_sentence(command: str, machine: str, text: str) -> None:
    changes = st.lists(st.tuples(st.integers(0, 400), CELLS), max_size=3)

    @settings(max_examples=40)
    @given(st.builds(with_cells, st.just(text), changes) | st.builds(mutated, st.just(text.encode()), EDITS))
    def check(data: bytes) -> None:
        result = table(command, machine, data)
        if result.code:
            assert (result.code, result.out) == (2, "")
            assert result.err.startswith(f"pkm {command}: line ") and len(result.err.splitlines()) == 1
            return
        assert result.err == ""
        header, *rows = csv.reader(io.StringIO(result.out))
        computed = [k for k, name in enumerate(header) if name != "t_s"]
        assert all(math.isfinite(float(row[k])) for row in rows for k in computed)
        given_numbers = data.decode().partition("\n")[2]
        assert not any(odd in given_numbers for odd in ("1_0", "\u0661", "0x10"))

    check()


# ---------------------------------------------------------------- ring

RING_COLUMNS, RING_CAPACITY = 5, 16


def ring_file(path: Path) -> bytes:
    writer = RingWriter(path, RING_COLUMNS, RING_CAPACITY, {"session": "s", "text": "x" * 200})
    for k in range(40):
        writer.push(np.full(RING_COLUMNS, float(k)))
    writer.close()
    return path.read_bytes()


WORDS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 7, 2**31, 2**53, 2**63, 2**64 - 1])


@settings(max_examples=150)
@given(
    EDITS,
    st.dictionaries(st.integers(1, 6), WORDS, max_size=2),
    st.sampled_from([None, b"[" * 5000, b"[]", b"\xff", b"{" * 9, b'{"a":' * 5000]),
    st.booleans(),
)
def test_a_ring_file_is_one_or_is_refused(edits, words: dict[int, int], meta: bytes | None, whole: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ring"
        data = bytearray(ring_file(path))
        for word, value in words.items():
            data[8 * word : 8 * word + 8] = value.to_bytes(8, "little")
        if meta is not None:
            header = 4096
            data[56:header] = meta[: header - 56].ljust(header - 56, b"\0")
        path.write_bytes(data if whole else mutated(bytes(data), edits))
        try:
            reader = RingReader(path)
        except ValueError as error:
            assert str(error).startswith(str(path))
            return
        assert isinstance(reader.meta, dict) and reader.written >= 0
        for start in (0, max(0, reader.written - 3), reader.written, reader.written + 10):
            first, rows = reader.read(start, 10)
            assert rows.ndim == 2 and first >= start and len(rows) <= 10
        reader.close()


# ---------------------------------------------------------------- MCAP


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, list[tuple[str, bytes]]]:
    """Rows, and the files of their recording: two finished parts and one that broke off."""
    rows, folder = make_rows(240), tmp_path_factory.mktemp("recording")
    for first, last in ((0, 110), (110, 170), (170, 240)):
        made = Recorder(make_site(folder), make_meta())
        made.append(first, rows[first:last])
        if last < 240:
            made.close()
    made._writer.flush()
    made._file.flush()
    files = [(part.name, part.read_bytes()) for part in parts(made.path)]
    made._abandon()
    assert len(files) == 3
    return rows, files


def restored(folder: Path, files: list[tuple[str, bytes]]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files:
        (folder / name).write_bytes(data)
    return folder / files[0][0]


def assert_recorded(path: Path, rows: np.ndarray) -> None:
    """Every row that is read was recorded under its index; or there is one sentence."""
    try:
        meta, columns, back = read(path)
    except ValueError as error:
        assert str(error).startswith(str(path)) and len(str(error).splitlines()) == 1
        return
    found = meta.pop("recording")
    assert columns == COLUMNS
    assert meta | {"started_monotonic_s": 0} == make_meta() | {"started_monotonic_s": 0}
    missing = {k for first, count in found["gaps"] for k in range(first, first + count)}
    indices = [k for k in range(len(rows)) if k not in missing][: len(back)]
    assert back.tobytes() == rows[indices].tobytes()


def blocks_of(path: Path) -> bytes | None:
    """What is read in blocks, which has to be what is read at once; None if it is no recording any more."""
    try:
        found = b"".join(block.rows.tobytes() for block in blocks(path, most_rows=50))
    except ValueError:
        return None
    assert found == read(path)[2].tobytes()
    assert all(isinstance(event, dict) for event in recorded_events(path))
    return found


def told_of(folder: Path) -> bytes:
    """The list of recordings as JSON, the lines of `pkm runs recover` and what a download holds."""
    said = io.StringIO()
    assert recover_all([folder], said) in (0, 1, 2)
    assert all(line.startswith(str(folder)) for line in said.getvalue().splitlines())
    for recorded in (found := listing(folder)):
        with contextlib.suppress(ValueError):
            snapshot(folder, recorded.name, io.BytesIO())
    return msgspec.json.encode(found)


@settings(max_examples=40)
@given(st.integers(0, 2), EDITS)
def test_a_damaged_recording_gives_rows_that_were_recorded(recorded, which: int, edits) -> None:
    rows, files = recorded
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "recordings"
        damaged = [(part, mutated(data, edits) if k == which else data) for k, (part, data) in enumerate(files)]
        path = restored(folder, damaged)
        assert_recorded(path, rows)
        known = [blocks_of(path), told_of(folder)]
        for part in parts(path):
            recover(part)
        assert_recorded(path, rows)
        assert blocks_of(path) == known[0]  # to recover changes nothing of what can be read
        assert told_of(folder)
        made = Recorder(make_site(Path(name)), make_meta())
        made.append(made.next_index, rows[made.next_index :])
        made.close()
        assert made.next_index == len(rows)
        assert_recorded(path, rows)
