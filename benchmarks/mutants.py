"""Mutation run over controller/safety: every small change of the code must make a test fail.

    python -m benchmarks.mutants [FILE ...]     all files of controller/safety, or some of them; two at a time

A mutant is a file with one change: a comparison, an arithmetic operator, a constant, and/or, a sign, a member that is
returned or or-ed in, a statement left out. Each runs in a process of its own, forked from one that has loaded and
played all tests, so a mutant takes as long as the quickest tests up to the first that fails. Survivors are printed;
then, as a table, those known to be equivalent, with the reason. The exit code is 1 when others survive, or when one
that is called equivalent does not.
"""

import ast
import contextlib
import gc
import io
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import pytest
from hypothesis.internal.conjecture import engine

ROOT = Path(__file__).parents[1]
SAFETY = ROOT / "controller" / "safety"
# without the plant: what needs it is noticed in a thousandth of the time as well
PLANT = ROOT / "tests" / "safety" / "test_stop.py"
TESTS = [*sorted({*ROOT.glob("tests/safety/test_*.py")} - {PLANT}), ROOT / "tests" / "test_cycle.py"]
LONGEST_S = 60  # of computing time: a mutant that never comes to an end is caught
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

# Changes that change nothing which a test could see: as printed, without the line -> why.
_WHOLE = "it is compared with whole ticks"
_TUNED = "a reserve or a resolution: a little more or less of it keeps every promise"
_EDGE = "only the very number at which both ways meet falls on the other side, and both ways suit it"
_STRICT = "the lengths were compared before, or are the program's own"
EQUIVALENT: dict[str, str] = {
    "supervisor.py explain: sign left out in -1": "the names of coordinates have one underscore, before the unit",
    "sensors.py 3 -> 2.7 in DEGRADED_AFTER = 3": _WHOLE,
    "sensors.py 6 -> 5.4 in LOST_AFTER = 6": _WHOLE,
    "pacing.py 0.8 -> 0.72 in SURE = 0.8": _TUNED,
    "pacing.py 1e-06 -> 9e-07 in LANDING_M = 1e-06": _TUNED,
    "pacing.py 14 -> 15 in BISECTIONS = 14": _TUNED,
    "pacing.py 0.001 -> 0.0009 in CREEP = 0.001": _TUNED,
    "pacing.py 1e-12 -> 9e-13 in ROUNDING_M = 1e-12": _TUNED,
    "pacing.py 1e-06 -> 9e-07 in ROUNDING = 1e-06": _TUNED,
    "pacing.py pace: Mult -> Div in ROUNDING * acceleration": _TUNED,
    "pacing.py pace: LtE -> Lt at 0 in bottom <= top + ROUNDING * acceleration": _EDGE,
    "pacing.py pace: LtE -> Lt at 0 in abs(onward) <= jerk * elapsed_s": _EDGE,
    "pacing.py pace: LtE -> Lt at 0 in abs(onward - change) <= jerk * elapsed_s": _EDGE,
    "pacing.py pace: Gt -> GtE at 0 in abs(v) > CREEP * (fast - slow)": _EDGE,
    "pacing.py _stops: GtE -> Gt at 0 in left_m >= -ROUNDING_M": _EDGE,
    "pacing.py _stops: LtE -> Lt at 0 in ahead(v, a, acceleration, jerk) <= left_m + LANDING_M": _EDGE,
    "pacing.py ahead: LtE -> Lt at 0 in fastest <= 0.0": "at 0 the way left is 0 either way",
    "pacing.py ahead: Lt -> LtE at 0 in fastest < acceleration * acceleration / jerk": "both formulas agree there",
    "pacing.py _on_one_line: LtE -> Lt at 0 in least <= most": "a single share is the nearest for each leg as well",
    "pacing.py _on_one_line: 1.0 -> 2 in size = sum((v * v for v in wanted)) or 1.0": "any share of nothing is nothing",
    "pacing.py _on_one_line: 1.0 -> 0.9 in size = sum((v * v for v in wanted)) or 1.0": "the same",
    "limits.py judge_motion: True -> False in ranges = list(zip(estimate.pose.tolist(), [...]": _STRICT,
    "pacing.py pace: True -> False in for (v, p0, v0, end, low, high, acceleration, jerk), [...]": _STRICT,
    "pacing.py _inside_stroke: True -> False in for p0, p, low, high in zip(before, wanted, [...]": _STRICT,
    "pacing.py _shares: True -> False in for v, (low, high) in zip(wanted, ranges, strict=True):": _STRICT,
    "pacing.py pace: True -> False in legs = list(zip(step, before, rates, moving, [...]": _STRICT,
    "pacing.py pace: True -> False in step = [(p - p0) / elapsed_s for p, p0 in zip(target, [...]": _STRICT,
    "pacing.py pace: True -> False in moved = [p0 + elapsed_s * rate for p0, rate in [...]": _STRICT,
    "pacing.py pace: True -> False in ends = [rate + 0.5 * elapsed_s * (rate - v0) / near_s [...]": _STRICT,
    "pacing.py _on_one_line: True -> False in return [min(max(share * v, low), high) for v, (low, [...]": _STRICT,
    "pacing.py _inside_stroke: True -> False in return ([p0 + share * (p - p0) for p, p0 in [...]": _STRICT,
    "pacing.py _on_one_line: True -> False in nearest = [min(max(v, low), high) for v, (low, high) [...]": _STRICT,
    "pacing.py _on_one_line: True -> False in share = sum((v * w for v, w in zip(wanted, nearest, [...]": _STRICT,
    "sensors.py judge_sensors: True -> False in for age_s, quality, count, most_s, required, [...]": _STRICT,
}


class Mutant(NamedTuple):
    """One change of one file."""

    path: Path
    line: int
    what: str
    tree: ast.Module  # of the file as it is
    change: Callable[[], Any]  # makes it the mutant's

    def named(self) -> str:
        """File, function, change and the code it is in: stays the same when lines move."""
        return f"{self.path.name} {self.what}"


def _sites(tree: ast.Module) -> Iterator[tuple[Any, str, Callable[[], Any]]]:
    """Every node that can be changed, with a word for the change and a function that makes it."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=operators):
                for k, operator in enumerate(operators):
                    for other in _COMPARISONS.get(type(operator), ()):
                        what = f"{type(operator).__name__} -> {other.__name__} at {k}"
                        yield node, what, partial(operators.__setitem__, k, other())
            case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
                other = _OPERATORS[type(operator)]
                yield node, f"{type(operator).__name__} -> {other.__name__}", partial(setattr, node, "op", other())
            case ast.BoolOp(op=operator):
                other_bool = ast.Or() if isinstance(operator, ast.And) else ast.And()
                yield node, f"{type(operator).__name__} swapped", partial(setattr, node, "op", other_bool)
            case ast.UnaryOp(op=ast.USub()):
                yield node, "sign left out", partial(setattr, node, "op", ast.UAdd())
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, "not left out", partial(setattr, node, "operand", ast.UnaryOp(ast.Not(), operand))
            case ast.Constant(value=bool(value)):
                yield node, f"{value} -> {not value}", partial(setattr, node, "value", not value)
            case ast.Constant(value=int(value) | float(value)):
                for number in (value + 1, 0.9 * value) if value else (value + 1,):
                    yield node, f"{value} -> {number:g}", partial(setattr, node, "value", number)
            case ast.Name(id="min" | "max" as name, ctx=ast.Load()):
                yield node, f"{name} swapped", partial(setattr, node, "id", "max" if name == "min" else "min")
            case ast.Attribute(value=ast.Name(id="Fault" | "Limit" | "Verdict" | "Effect" | "C" | "Mode")):
                yield node, f"{node.attr} -> another member", partial(setattr, node, "value", _other(node))
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
    tree = ast.parse(path.read_text())
    inside: dict[ast.AST, str] = {}
    lines: dict[ast.AST, str] = {}  # the statement that a node is in
    for node in ast.walk(tree):  # what is inside comes later
        if isinstance(node, ast.stmt):
            lines |= dict.fromkeys(ast.walk(node), shorten(ast.unparse(node).splitlines()[0], 60))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside |= dict.fromkeys(ast.walk(node), f"{node.name}: ")
    found: list[Mutant] = []
    for node, what, change in _sites(tree):
        alone = isinstance(node, ast.Constant | ast.Name | ast.Attribute)
        where = lines[node] if alone else shorten(ast.unparse(node), 60)
        found.append(Mutant(path, node.lineno, f"{inside.get(node, '')}{what} in {where}", tree, change))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for body in _bodies(function):
            for k, statement in enumerate(body):
                if not isinstance(statement, ast.Assign | ast.AugAssign | ast.If | ast.Return | ast.Expr | ast.For):
                    continue
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    continue
                change = partial(body.__setitem__, k, ast.copy_location(ast.Pass(), statement))
                what = f"{inside[statement]}left out: {lines[statement]}"
                found.append(Mutant(path, statement.lineno, what, tree, change))
    return found


def _bodies(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse"):
            rows = getattr(node, field, None)
            if isinstance(rows, list) and not (node is not function and isinstance(node, ast.FunctionDef)):
                yield rows


def put_in(path: Path, tree: ast.Module) -> None:
    """Give a loaded module the code of a mutant, also where others have imported from it by name."""
    module = sys.modules[f"controller.safety.{path.stem}"]
    old = dict(vars(module))
    same = {ast.dump(node) for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}
    tree.body = [node for node in tree.body if ast.dump(node) not in same]  # members of a class go on being members
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), vars(module))
    for name, was in old.items():
        now = vars(module)[name]
        if now is was:
            continue
        if isinstance(was, type) and issubclass(was, tuple):  # records that exist already get the methods and defaults
            for key, value in vars(now).items():
                if callable(value) or isinstance(value, property | classmethod | staticmethod):
                    setattr(was, key, value)
            setattr(module, name, was)
            continue
        for other in [*sys.modules.values()]:
            if vars(other).get(name) is was:
                setattr(other, name, now)


class Run:
    """A run of pytest that plays the tests once as they are, then the quickest first for every mutant."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths, self.exit_code = paths, 2

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of the loop over the tests."""
        seconds: dict[pytest.Item, float] = {}
        for item in session.items:
            begun = time.process_time()
            _play(session, [item])
            seconds[item] = time.process_time() - begun
        items = sorted(session.items, key=seconds.__getitem__)
        gc.freeze()  # what is there is not looked at again in every fork
        if session.testsfailed or not all(_survives(session, items, path, None) for path in self.paths):
            _say("the tests fail without any mutant")
            return True
        self.exit_code = self._report(session, items)
        return True

    def _report(self, session: pytest.Session, items: list[pytest.Item]) -> int:
        begun, others, equivalent = time.monotonic(), 0, list[Mutant]()
        todo = [mutant for path in self.paths for mutant in mutants(path)]
        with ThreadPoolExecutor(PROCESSES) as pool:
            found = pool.map(lambda mutant: _survives(session, items, mutant.path, mutant), todo)
            for mutant, survived in zip(todo, found, strict=True):
                if survived and mutant.named() in EQUIVALENT:
                    equivalent.append(mutant)
                elif survived:
                    others += 1
                    _say(f"{mutant.path.name}:{mutant.line} {mutant.what}")
        for mutant in equivalent:
            _say(f"equivalent: {mutant.path.name}:{mutant.line} {mutant.what}\n    {EQUIVALENT[mutant.named()]}")
        names, still = {path.name for path in self.paths}, {mutant.named() for mutant in equivalent}
        idle = [name for name in EQUIVALENT if name.partition(" ")[0] in names and name not in still]
        for name in idle:
            _say(f"called equivalent, but a test notices it, or it is gone: {name}")
        killed, more = len(todo) - others - len(equivalent), f", {others} SURVIVE" if others else ""
        _say(f"{time.monotonic() - begun:.0f} s")
        _say(f"{len(todo)} mutants, {killed} killed, {len(equivalent)} equivalent{more}")
        return 1 if others or idle else 0


def _say(line: str) -> None:
    print(line, file=sys.__stdout__, flush=True)


def _play(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Play tests up to the first that fails."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            break


def _survives(session: pytest.Session, items: list[pytest.Item], path: Path, mutant: Mutant | None) -> bool:
    """Whether the tests pass with a mutant, or with the same code loaded again; what takes too long is caught."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))
            if mutant:
                mutant.change()
            put_in(path, mutant.tree if mutant else ast.parse(path.read_text()))
            _play(session, items)
        except BaseException:
            os._exit(1)  # it cannot even be loaded
        os._exit(int(session.testsfailed > 0))
    return os.waitpid(pid, 0)[1] == 0


def main(names: list[str]) -> int:
    """Run all mutants of the named files and print what survives."""
    os.chdir(ROOT)
    run = Run([SAFETY / name for name in names] or sorted(path for path in SAFETY.glob("*.py") if mutants(path)))
    engine.MAX_SHRINKS = 0  # that a mutant fails is enough
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--capture=no", "-W", "ignore"]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*quiet, *map(str, TESTS)], plugins=[run])
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
