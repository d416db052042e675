"""Mutation run over controller/safety: every small change of the code must make a test fail.

    python -m benchmarks.mutants [FILE ...]     all files of controller/safety, or some of them; two at a time

A mutant is a file with one change: a comparison, an arithmetic operator, a constant, and/or, a sign, a member that is
returned or or-ed in, a statement left out. Each runs in a process of its own, forked from one that has the libraries
loaded, so a mutant takes as long as its tests until the first one fails. Survivors are printed; those known to be
equivalent stand below with the reason. The exit code is 1 when there are others.
"""

import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis  # noqa: F401 - what follows is loaded once, before the forks; nothing of it loads controller.safety
import pytest

import controller.lint.geometry
import controller.motion.estimator
import controller.motion.feedback
import controller.motion.feedforward
import controller.motion.homing
import controller.motion.monitor
import controller.motion.stream
import controller.motion.track
import controller.settings  # noqa: F401

ROOT = Path(__file__).parents[1]
SAFETY = ROOT / "controller" / "safety"
SLOWEST = ROOT / "tests" / "safety" / "test_guard.py"
# the slowest last: most mutants do not get there
TESTS = (*sorted({*ROOT.glob("tests/safety/test_*.py")} - {SLOWEST}), ROOT / "tests" / "test_cycle.py", SLOWEST)
LONGEST_S = 120
PROCESSES = 2

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}

# Changes that change nothing which a test could see: file and change as printed -> why.
_WHOLE = "it is compared with whole ticks"
_TUNED = "a reserve or a resolution: a little more or less of it keeps every promise"
_STRICT = "the lengths are the same unless the program is wrong"
_ONE = "a share of the way that is never the smallest one, or is limited to 1 afterwards"
EQUIVALENT: dict[str, str] = {
    "supervisor.py: sign or not left out in -1": "the names of coordinates have one underscore, before the unit",
    "faults.py: 2 -> 3 in 2": "effects are compared with each other only",
    "sensors.py: 3 -> 2.7 in 3": _WHOLE,
    "sensors.py: 6 -> 5.4 in 6": _WHOLE,
    "sensors.py: True -> False in True": _STRICT,
    "limits.py: True -> False in True": _STRICT,
    "pacing.py: True -> False in True": _STRICT,
    "pacing.py: 0.8 -> 0.7200000000000001 in 0.8": _TUNED,
    "pacing.py: 1e-06 -> 9e-07 in 1e-06": _TUNED,
    "pacing.py: 1e-06 -> 1.000001 in 1e-06": "the two sides of a range cross by rounding only, or one is no number",
    "pacing.py: 1e-12 -> 9e-13 in 1e-12": _TUNED,
    "pacing.py: 14 -> 15 in 14": _TUNED,
    "pacing.py: 1.0 -> 2.0 in 1.0": _ONE,
    "pacing.py: 1.0 -> 0.9 in 1.0": "the way is caught up with a little more slowly",
    "pacing.py: LtE -> Lt at 0 in fastest <= 0.0": "at 0 the way left is 0 either way",
    "pacing.py: Lt -> LtE at 0 in fastest < acceleration * acceleration / jerk": "both formulas agree there",
    "pacing.py: GtE -> Gt at 0 in left_m >= -ROUNDING_M": _TUNED,
    "pacing.py: LtE -> Lt at 0 in ahead(v, a, acceleration, jerk) <= left_m + LANDING_M": _TUNED,
    "pacing.py: LtE -> Lt at 0 in abs(onward) <= jerk * elapsed_s": _TUNED,
    "pacing.py: LtE -> Lt at 0 in abs(onward - change) <= jerk * elapsed_s": _TUNED,
    "pacing.py: LtE -> Lt at 0 in least <= most": "a single share is the nearest for each leg as well",
    "pacing.py: LtE -> Lt at 0 in bottom <= top + ROUNDING * acceleration": _TUNED,
}


class Mutant(NamedTuple):
    """One change of one file."""

    path: Path
    line: int
    what: str
    tree: ast.Module

    def named(self) -> str:
        """File, change and the code it is in: stays the same when lines move."""
        return f"{self.path.name}: {self.what}"


def _sites(tree: ast.Module) -> Iterator[tuple[ast.AST, str, Any]]:
    """Every node that can be changed, with a word for the change and a function that makes it."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=operators):
                for k, operator in enumerate(operators):
                    for other in _COMPARISONS.get(type(operator), ()):
                        yield node, f"{type(operator).__name__} -> {other.__name__} at {k}", ("ops", k, other())
            case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
                other = _OPERATORS[type(operator)]
                yield node, f"{type(operator).__name__} -> {other.__name__}", ("op", None, other())
            case ast.BoolOp(op=operator):
                other_bool = ast.Or() if isinstance(operator, ast.And) else ast.And()
                yield node, f"{type(operator).__name__} swapped", ("op", None, other_bool)
            case ast.UnaryOp(op=ast.USub() | ast.Not()):
                yield node, "sign or not left out", ("op", None, ast.UAdd())
            case ast.Constant(value=bool(value)):
                yield node, f"{value} -> {not value}", ("value", None, not value)
            case ast.Constant(value=int(value) | float(value)):
                yield node, f"{value} -> {value + 1}", ("value", None, value + 1)
                if value:
                    yield node, f"{value} -> {0.9 * value}", ("value", None, 0.9 * value)
            case ast.Name(id="min" | "max" as name, ctx=ast.Load()):
                yield node, f"{name} swapped", ("id", None, "max" if name == "min" else "min")
            case ast.Attribute(value=ast.Name(id="Fault" | "Limit" | "Verdict" | "Effect" | "C" | "Mode")):
                yield node, f"{node.attr} -> another member", ("value", None, _other(node))
            case _:
                pass


def _other(node: ast.Attribute) -> ast.expr:
    # an expression whose attribute of the old name is the next member of the enumeration
    kind = ast.unparse(node.value)
    source = f"type('', (), {{{node.attr!r}: [*{kind}][([*{kind}].index({kind}.{node.attr}) + 1) % len([*{kind}])]}})"
    if f"{kind}.{node.attr}".endswith(".NONE"):
        source = f"type('', (), {{{node.attr!r}: [*{kind}][-1]}})"
    return ast.parse(source, mode="eval").body


def mutants(path: Path) -> list[Mutant]:
    """Every mutant of a file. Text, types and table entries that only speak are left alone."""
    source = path.read_text()
    tree = ast.parse(source)
    found: list[Mutant] = []
    for index, (node, what, (name, k, value)) in enumerate(_sites(tree)):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = ast.Not()  # noqa: PLW2901 - made a double one below
        changed = copy.deepcopy(tree)
        twin = [*_sites(changed)][index][0]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            twin.operand = ast.UnaryOp(ast.Not(), twin.operand)  # type: ignore[attr-defined]
        elif k is None:
            setattr(twin, name, value)
        else:
            getattr(twin, name)[k] = value
        found.append(Mutant(path, node.lineno, f"{what} in {ast.unparse(node)}", changed))  # type: ignore[attr-defined]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in functions:
        for body in _bodies(node):
            for statement in body:
                if isinstance(statement, ast.Assign | ast.AugAssign | ast.If | ast.Return | ast.Expr | ast.For):
                    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                        continue
                    changed = ast.parse(source)
                    for other in ast.walk(changed):
                        for field in ("body", "orelse"):
                            rows = getattr(other, field, None)
                            if isinstance(rows, list):
                                for at, row in enumerate(rows):
                                    if (row.lineno, row.col_offset) == (statement.lineno, statement.col_offset):
                                        rows[at] = ast.copy_location(ast.Pass(), row)
                    text = ast.unparse(statement).splitlines()[0]
                    found.append(Mutant(path, statement.lineno, f"left out: {text}", changed))
    return found


def _bodies(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse"):
            rows = getattr(node, field, None)
            if isinstance(rows, list) and not (node is not function and isinstance(node, ast.FunctionDef)):
                yield rows


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module the code of a mutant."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        self._name, self._mutant = name, mutant

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._mutant.path, loader=self)

    def create_module(self, spec: object) -> None:
        del spec

    def exec_module(self, module: Any) -> None:
        tree = ast.fix_missing_locations(self._mutant.tree)
        exec(compile(tree, str(self._mutant.path), "exec"), module.__dict__)


def survives(mutant: Mutant | None) -> bool:
    """Whether the tests pass with a mutant, or with none; one that takes too long is caught."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        signal.alarm(LONGEST_S)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            if mutant:
                sys.meta_path.insert(0, _Finder(f"controller.safety.{mutant.path.stem}", mutant))
            options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "-W", "ignore"]
            os._exit(int(any(pytest.main([*options, str(test)]) for test in TESTS)))  # up to the first that fails
    return os.waitpid(pid, 0)[1] == 0


def main(names: list[str]) -> int:
    """Run all mutants of the named files and print what survives."""
    os.chdir(ROOT)
    files = [SAFETY / name for name in names] or sorted(SAFETY.glob("*.py"))
    todo = [mutant for path in files for mutant in mutants(path)]
    if not survives(None):
        print("the tests fail without any mutant")
        return 2
    begun, survivors = time.monotonic(), 0
    with ThreadPoolExecutor(PROCESSES) as pool:
        for mutant, survived in zip(todo, pool.map(survives, todo), strict=True):
            if survived and mutant.named() not in EQUIVALENT:
                survivors += 1
                print(f"{mutant.path.name}:{mutant.line}: {mutant.what}", flush=True)
    print(f"{len(todo)} mutants, {survivors} survive, {time.monotonic() - begun:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
