"""The parts of the documentation that the code knows better: tables between marks, and the figures of the machines.

    python docs/generate.py            write them
    python docs/generate.py --check    exit code 1 and the names of the files that differ from the code

A mark is a comment of its own line, `<!-- keys: LegLimits -->`, and ends with `<!-- end -->`. What may stand there:
keys of a table of `controller.schema`; commands; options of a command; faults; channels; sites; a
machine; import layers; codes of an enumeration of `controller.records`; benchmarks.
"""

import argparse
import ast
import enum
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import inspect

from controller import command_line, records, schema
from controller.mechanism import kinematics
from controller.mechanism.model import build, home_pose
from controller.safety.faults import FAULTS
from controller.settings import load_machine, load_site
from controller.units import unit_of

ROOT = Path(__file__).parents[1]
MACHINES = ROOT / "config" / "machines"
SITES = sorted((ROOT / "config" / "sites").glob("*.toml"))
MARKED = re.compile(r"(<!-- (\w+)(?:: ([\w-]+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every file that may have marks."""
    return [ROOT / "config" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """The text of a page with what stands between its marks made anew."""
    return MARKED.sub(lambda mark: f"{mark[1]}\n{MAKERS[mark[2]](mark[3] or '')}\n{mark[4]}", text)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; pipes inside cells are escaped."""
    lines = [list(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# ---------------------------------------------------------------- keys


def meanings(name: str) -> list[tuple[str, list[str]]]:
    """The docstrings below the keys of a struct of the schema, each with the keys that stand above it."""
    found: list[tuple[str, list[str]]] = []
    waiting: list[str] = []
    for node in ast.parse(Path(schema.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    waiting.append(part.target.id)
                elif waiting and isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                    found.append((" ".join(str(part.value.value).split()), waiting))
                    waiting = []
    return found


def keys(name: str) -> str:
    """The keys of a table, except those that are tables themselves: these have their own place."""
    kind: Any = inspect.type_info(getattr(schema, name))
    fields = {field.name: field for field in kind.fields if not _is_table(field.type)}
    rows = [[f"`{kind.tag_field}`", f'`"{kind.tag}"`', "", "", ""]] if kind.tag_field else []
    for meaning, named in meanings(name):
        members = [fields.pop(key) for key in named if key in fields]
        cells = [
            _each(f"`{field.name}`" for field in members),
            _each(_type(field.type) for field in members),
            _each(_default(field) for field in members),
            _each(unit_of(field.name) for field in members),
        ]
        if members:
            rows.append([*cells, meaning])
    if fields:
        raise ValueError(f"controller/schema.py: {name}: no docstring below {', '.join(fields)}")
    return table(["key", "type, range", "default", "unit", "meaning"], rows)


def _each(cells: Iterable[str]) -> str:
    """Cells of keys that share a line: once if they are all the same."""
    found = list(cells)
    return found[0] if len(set(found)) == 1 else ", ".join(found)


def _is_table(kind: Any) -> bool:
    match kind:
        case inspect.StructType():
            return True
        case inspect.UnionType(types=types):
            return any(_is_table(one) for one in types)
        case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner):
            return _is_table(inner)
    return False


def _type(kind: Any) -> str:
    match kind:
        case inspect.UnionType(types=types):
            return " or ".join(_type(one) for one in types if not isinstance(one, inspect.NoneType))
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{_toml(value)}`" for value in values)
        case inspect.BoolType():
            return "`true`, `false`"
        case inspect.StrType():
            return "text"
        case inspect.IntType() | inspect.FloatType():
            return " ".join(["integer" if isinstance(kind, inspect.IntType) else "number", _range(kind)]).strip()
        case inspect.TupleType(item_types=items):
            inner = items[0]
            if isinstance(inner, inspect.TupleType):
                return "tensor"
            return "range" if len(items) == 2 else "vector"
        case inspect.ListType(item_type=inner, max_length=most):
            return f"list of {_type(inner)}" + (f", at most {most}" if most else "")
    raise ValueError(f"no words for {kind}")


def _range(kind: Any) -> str:
    low = f"> {kind.gt:g}" if kind.gt is not None else f"≥ {kind.ge:g}" if kind.ge is not None else ""
    high = f"< {kind.lt:g}" if kind.lt is not None else f"≤ {kind.le:g}" if kind.le is not None else ""
    if kind.ge is not None and kind.le is not None:
        return f"{kind.ge:g} … {kind.le:g}"
    return ", ".join(part for part in (low, high) if part)


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None:
        return "none"
    return "empty" if value in ("", [], {}) else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple():
            return "[" + ", ".join(_toml(one) for one in value) + "]"
    return (
        re.sub(r"e([+-])0*", lambda e: "e" + e[1].strip("+"), f"{value:g}") if isinstance(value, float) else str(value)
    )


# ---------------------------------------------------------------- commands


def parsers() -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Every command that `pkm --help` lists, those below a command as `runs list`, each with what it does."""
    return dict(_below(command_line.parser(), ""))


def _below(parser: argparse.ArgumentParser, before: str) -> Iterable[tuple[str, tuple[str, argparse.ArgumentParser]]]:
    for action in parser._actions:  # argparse has no other way to look
        if isinstance(action, argparse._SubParsersAction):
            texts = {listed.dest: listed.help or "" for listed in action._choices_actions}
            for name, below in action.choices.items():
                if before or name in texts:
                    yield f"{before} {name}".strip(), (texts.get(name) or below.description or "", below)
                    yield from _below(below, name)


def commands(_: str) -> str:
    """One line a command."""
    rows = [[f"[`pkm {name}`](#pkm-{name})", text] for name, (text, _) in parsers().items() if " " not in name]
    return table(["command", "does"], rows)


def options(name: str) -> str:
    """How a command is called, and its options; of a command with others below it, those of each."""
    parts: list[str] = []
    for full, (text, parser) in parsers().items():
        if full.split()[0] != name or any(isinstance(action, argparse._SubParsersAction) for action in parser._actions):
            continue
        formatter = argparse.HelpFormatter(parser.prog, width=110)
        formatter.add_usage(None, *_usage(parser), prefix="")
        if " " in full and text:
            parts.append(f"{text[0].upper()}{text[1:]}:\n")
        parts.append(f"```text\n{formatter.format_help().strip()}\n```\n")
        rows = [
            [f"`{_called(action)}`", (action.help or "").replace("%(default)s", str(action.default))]
            for action in parser._actions
            if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction) and action.help
        ]
        if rows:
            parts.append(table(["option", "meaning"], rows))
    if not parts:
        raise ValueError(f"no command {name}")
    return "\n".join(parts)


def _usage(parser: argparse.ArgumentParser) -> tuple[Any, Any]:
    shown = [
        action
        for action in parser._actions
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)
    ]
    return shown, parser._mutually_exclusive_groups


def _called(action: argparse.Action) -> str:
    if action.choices and not action.metavar:
        value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    else:
        value = str(action.metavar or (action.dest.upper() if action.nargs != 0 else ""))
    return " ".join(part for part in (", ".join(action.option_strings), value if action.nargs != 0 else "") if part)


# ---------------------------------------------------------------- faults, channels, codes


def faults(_: str) -> str:
    """Effect and meaning of every fault, in the order of their bits."""
    rows = [[f"[{fault.name}](#{anchor(fault)})", FAULTS[fault].effect.name, FAULTS[fault].meaning] for fault in FAULTS]
    return table(["fault", "effect", "meaning"], sorted(rows, key=lambda row: row[0]))


def anchor(fault: records.Fault) -> str:
    """Where a page has the heading of a fault."""
    return str(fault.name).lower()


def channels(_: str) -> str:
    """The columns of a tick, those that differ in the number of a leg once, with the sites that have them."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    shipped = {path.stem: load_site(path) for path in SITES}
    for name, files in shipped.items():
        for channel in records.channels(
            len(files.machine.leg), list(files.site.sensors), files.site.stream is not None
        ):
            row = found.setdefault(general(channel.name), (channel.unit, _without_leg(channel.meaning), []))
            if name not in row[2]:
                row[2].append(name)
    rows = [
        [f"`{name}`", unit, meaning, "all" if len(where) == len(shipped) else ", ".join(map(_short, where))]
        for name, (unit, meaning, where) in found.items()
    ]
    return table(["channel", "unit", "meaning", "sites"], rows)


def sites(_: str) -> str:
    """Machine, sensors and number of channels of the sites that ship."""
    rows: list[list[str]] = []
    for path in SITES:
        files = load_site(path)
        legs, sensors = len(files.machine.leg), list(files.site.sensors)
        width = len(records.channels(legs, sensors, files.site.stream is not None))
        kinds = sorted({re.sub(r"_\d$", "_{i}", sensor) for sensor in sensors})
        rows.append([f"`config/sites/{path.name}`", _short(path.stem), files.machine.name, str(legs),
                     ", ".join(f"`{kind}`" for kind in kinds), str(width)])  # fmt: skip
    return table(["file", "called below", "machine", "legs", "sensors", "channels"], rows)


def _short(site: str) -> str:
    return site.removeprefix("simulation-")


def general(channel: str) -> str:
    """The name of a channel with {i} for the number of its leg."""
    return re.sub(r"_\d_", "_{i}_", channel)


def _without_leg(meaning: str) -> str:
    return re.sub(r"^leg \d: ", "", meaning)


def machine(name: str) -> str:
    """What a machine file says of itself, and what follows for its home."""
    found, _ = load_machine(MACHINES / f"{name}.toml")
    legs, leg = found.legs, found.leg
    model, home = build(found), home_pose(found)
    lengths = np.empty(len(leg))
    kinematics.leg_lengths(model, home, lengths)
    kinds = Counter(own.kind or legs.kind for own in leg)
    drive = legs.drive
    if isinstance(drive, schema.ScrewDrive):
        driven = f"screw, lead {1e3 * drive.lead_m:g} mm, peak torque {drive.peak_torque_nm:g} N m"
    else:
        driven = f"cylinder, piston {1e3 * drive.piston_diameter_m:g} mm, rod {1e3 * drive.rod_diameter_m:g} mm"
    rows = [
        ["source", " ".join(found.source.split())],
        ["platform", f'`"{found.platform.kind}"`, {found.platform.mass_kg:g} kg'],
        ["legs", ", ".join(f"{count} {kind}" for kind, count in kinds.items())],
        ["drive", driven],
        ["load cells", f"one a leg, {legs.cell.capacity_n:g} N" if legs.cell else "none"],
        ["stroke", f"{legs.limits.length_m[0]:g} … {legs.limits.length_m[1]:g} m"],
        ["at home", "legs of " + ", ".join(f"{length:.3f}" for length in lengths) + " m"],
        ["limits of a leg", f"{legs.limits.speed_m_s:g} m/s, {legs.limits.acceleration_m_s2:g} m/s², "
                            f"{legs.limits.force_n:g} N"],
    ]  # fmt: skip
    return table([f"`config/machines/{name}.toml`", found.title], rows)


def layers(_: str) -> str:
    """The import layers that the linter checks, from the top down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    names = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return "```text\n" + "\n".join(names) + "\n```\n"


def benchmarks(_: str) -> str:
    """What each benchmark asks, and the commands that ask it, as its docstring says."""
    rows = list[list[str]]()
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        commands = [line.strip().split("     ")[0] for line in said.splitlines() if "python -m benchmarks." in line]
        if commands:
            rows.append(["<br>".join(f"`{line}`" for line in commands), said.splitlines()[0]])
    return table(["command", "asks"], rows)


def codes(name: str) -> str:
    """The members of an enumeration, by number."""
    kind: type[enum.IntEnum] = getattr(records, name)
    return ", ".join(f"{member.value} {member.name}" for member in kind) + "\n"


MAKERS = {
    "keys": keys, "commands": commands, "options": options, "faults": faults, "channels": channels, "sites": sites,
    "machine": machine, "layers": layers, "codes": codes,
    "benchmarks": benchmarks,
}  # fmt: skip

# ---------------------------------------------------------------- figures

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
IDENTIFIER = re.compile(r"\b[mp][0-9a-f]{10}\b")  # made of a hash of what it names


def drawings() -> dict[Path, str]:
    """The drawing of every machine, by the file in which its page has it."""
    from figures import drawing

    folder = ROOT / "docs" / "explanation" / "mechanisms"
    return {folder / f"{path.stem}.svg": drawing(load_machine(path)[0]) for path in sorted(MACHINES.glob("*.toml"))}


def alike(one: str, other: str) -> bool:
    """Are two drawings the same but for last digits, which differ from processor to processor?"""
    one, other = (IDENTIFIER.sub("", text) for text in (one, other))
    if NUMBER.sub("", one) != NUMBER.sub("", other):
        return False
    numbers = (np.array([float(number) for number in NUMBER.findall(text)]) for text in (one, other))
    return bool(np.allclose(*numbers, rtol=0.0, atol=0.01))


# ---------------------------------------------------------------- all of it


def stale() -> dict[Path, str]:
    """What has to be written: the files that the code would make otherwise, with their text."""
    made = {path: filled(path.read_text(encoding="utf-8")) for path in pages()}
    found = {path: text for path, text in made.items() if path.read_text(encoding="utf-8") != text}
    return found | {
        path: text
        for path, text in drawings().items()
        if not path.exists() or not alike(path.read_text(encoding="utf-8"), text)
    }


def main() -> int:
    """Write what has to be written, or name it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    found = stale()
    for path, text in found.items():
        print(f"{path.relative_to(ROOT)}: " + ("the code says otherwise" if check else "written"))
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
