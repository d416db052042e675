"""Run the Structured Text of a function block in Python: as much of the language as deploy/twincat uses.

blark parses it; the body and every method become a Python function, statement by statement. Arrays start at 1, and
an assignment copies. Not kept: the width of integers. What is not known here raises: no statement is passed over.
"""

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from blark import transform

FUNCTIONS = {
    "ABS": abs,
    "SQRT": math.sqrt,
    "MIN": min,
    "MAX": max,
    "LIMIT": lambda low, value, high: min(max(value, low), high),
    "SEL": lambda second, no, yes: yes if second else no,
    "INT_TO_DINT": int,
    "LrealIsFinite": math.isfinite,
}
OPERATORS = {"AND": "&", "OR": "|", "=": "==", "<>": "!="}  # & and | do with truth values what they do with bits
ZERO = {"BOOL": False, "LREAL": 0.0} | dict.fromkeys(("SINT", "INT", "UINT", "DINT", "UDINT", "DWORD"), 0)


def copied(value: Any) -> Any:
    """The value itself, no reference to it."""
    if isinstance(value, list):
        return [copied(v) for v in value]
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**{n: copied(v) for n, v in vars(value).items()})
    return value


def declarations(items: Iterable[Any]) -> dict[str, Any]:
    """The declaration of each variable in these lines, by name."""
    return {str(getattr(v, "variable", v)).split(" ")[0]: item.init for item in items for v in item.variables}


def environment(sources: dict[str, transform.SourceCode], sizes: dict[str, int]) -> dict[str, Any]:
    """What every block can name: functions, enumerations, global lists, types; `sizes` is for SIZEOF, by variable."""
    world: dict[str, Any] = FUNCTIONS | {"copy": copied, "zero of": dict(ZERO), "size of": sizes}
    for name, source in sources.items():
        first = source.items[0]
        if name.startswith("ST_"):
            world["zero of"][name] = declarations(first.declaration.declarations)
        elif isinstance(first, transform.DataTypeDeclaration):
            world["zero of"][name] = 0
            world[name] = SimpleNamespace(
                **{str(v.name): int(str(v.value)) for v in first.declaration.init.spec.values}
            )
    for name, source in sources.items():
        if isinstance(source.items[0], transform.GlobalVariableDeclarations):
            known = {n: d for block in source.items for n, d in declarations(block.items).items()}
            known = {n: d for n, d in known.items() if n not in ("aAxis", "aTrigger")}  # of libraries
            world[name] = SimpleNamespace(**{n: initial(d, world) for n, d in known.items()})
    return world


def zero(kind: str, world: dict[str, Any]) -> Any:
    """What a variable of this type is without an initial value."""
    value = world["zero of"][kind]
    return SimpleNamespace(**{n: initial(d, world) for n, d in value.items()}) if isinstance(value, dict) else value


def initial(declaration: Any, world: dict[str, Any]) -> Any:
    """What a variable of this declaration is at first."""
    value = getattr(declaration, "value", None)
    if not isinstance(declaration, transform.ArrayTypeInitialization):
        return zero(str(declaration.spec), world) if value is None else eval(expression(value, {}), world)
    (subrange,) = declaration.spec.subranges
    count, kind = int(str(subrange.stop)), str(declaration.spec.base_type_name)
    if value is None:
        return [None, *(zero(kind, world) for _ in range(count))]
    (element,) = value.elements
    assert int(str(element.count)) == count
    return [None, *[eval(expression(element.element, {}), world)] * count]


def function(source: transform.SourceCode, world: dict[str, Any]) -> Any:
    """A FUNCTION, called with its inputs by name."""
    (item,) = source.items
    local = {n: d for part in item.declarations for n, d in declarations(part.items).items()}
    return _method(None, item, local, {}, world)


def function_block(source: transform.SourceCode, world: dict[str, Any]) -> SimpleNamespace:
    """An instance: its variables as attributes, its methods, and its body as `run(**inputs)`."""
    block, *methods = source.items
    variables = {n: d for part in block.declarations for n, d in declarations(part.items).items()}
    me = SimpleNamespace(**{n: initial(d, world) for n, d in variables.items()})
    names = dict.fromkeys([*variables, *(str(method.name) for method in methods)], "me.")
    names |= {f"SIZEOF {n}": str(size) for n, size in world["size of"].items()}
    for method in methods:
        local = {n: d for part in method.declarations for n, d in declarations(part.items).items()}
        setattr(me, str(method.name), _method(me, method, local, names, world))
    run_body = _method(me, block, {}, names, world)

    def run(**inputs: Any) -> None:
        assert set(inputs) <= set(variables)
        vars(me).update({n: copied(value) for n, value in inputs.items()})
        run_body()

    me.run = run
    return me


def _method(me: Any, method: Any, local: dict[str, Any], names: dict[str, str], world: dict[str, Any]) -> Any:
    result = str(method.name) if getattr(method, "return_type", None) else ""
    names = names | dict.fromkeys([*local, result], "my.") | {"RETURN": f"my.{result}" if result else "None"}
    found: dict[str, Any] = {}
    lines = ["def function(me, my):", *_lines(method.body, names, 1), f"    return {names['RETURN']}"]
    exec("\n".join(lines), world, found)
    start = SimpleNamespace(**{n: initial(d, world) for n, d in local.items()})
    if result:
        setattr(start, result, zero(str(method.return_type), world))

    def call(**inputs: Any) -> Any:
        assert set(inputs) <= set(local)
        my = copied(start)
        vars(my).update({n: copied(value) for n, value in inputs.items()})
        return found["function"](me, my)

    return call


def _lines(statements: Any, names: dict[str, str], depth: int) -> list[str]:
    """Python lines of a list of statements."""
    lines: list[str] = []

    def line(text: str, inner: Any = None) -> None:
        lines.append("    " * depth + text)
        if text.endswith(":"):
            lines.extend(_lines(inner, names, depth + 1) or ["    " * (depth + 1) + "pass"])

    def text(node: Any) -> str:
        return expression(node, names)

    for statement in [] if statements is None else statements.statements:
        match statement:
            case transform.AssignmentStatement(variables=[variable]):
                line(f"{text(variable)} = copy({text(statement.expression)})")
            case transform.FunctionCallStatement():
                line(text(statement))
            case transform.ReturnStatement():
                line(f"return {names['RETURN']}")
            case transform.ForStatement(step=None):
                line(
                    f"for {text(statement.control)} in range({text(statement.from_)}, {text(statement.to)} + 1):",
                    statement.statements,
                )
            case transform.IfStatement():
                line(f"if {text(statement.if_expression)}:", statement.statements)
                for clause in statement.else_ifs:
                    line(f"elif {text(clause.if_expression)}:", clause.statements)
            case transform.CaseStatement():
                for word, element in zip(["if", *["elif"] * len(statement.cases)], statement.cases, strict=False):
                    values = ", ".join(text(match) for match in element.matches)
                    line(f"{word} {text(statement.expression)} in ({values},):", element.statements)
            case _:
                raise NotImplementedError(type(statement))
        if getattr(statement, "else_clause", None) is not None:
            line("else:", statement.else_clause.statements)
    return lines


def expression(node: Any, names: dict[str, str]) -> str:
    """Python text of an expression; `names` says in which object each variable lives."""
    match node:
        case transform.Boolean():
            return str(node).capitalize()
        case transform.Literal() | transform.EnumeratedValue():
            return str(node)
        case transform.SimpleVariable():
            return names.get(str(node), "") + str(node)
        case transform.MultiElementVariable():
            text = expression(node.name, names)
            for element in node.elements:
                if isinstance(element, transform.SubscriptList):
                    (subscript,) = element.subscripts
                    text += f"[{expression(subscript, names)}]"
                elif str(element.field).isdigit():
                    text = f"bool({text} >> {element.field} & 1)"
                else:
                    text += f".{element.field}"
            return text
        case transform.ParenthesizedExpression():
            return expression(node.expr, names)
        case transform.UnaryOperation():
            return f"({str(node.op).lower()} {expression(node.expr, names)})"
        case transform.BinaryOperation():
            operator = OPERATORS.get(str(node.op), str(node.op))
            return f"({expression(node.left, names)} {operator} {expression(node.right, names)})"
        case transform.FunctionCall(name=name) if str(name) == "SIZEOF":
            return names[f"SIZEOF {node.parameters[0].value}"]
        case transform.FunctionCall():
            values = [f"{p.name or ''}{'=' if p.name else ''}{expression(p.value, names)}" for p in node.parameters]
            return f"{expression(node.name, names)}({', '.join(values)})"
        case _:
            raise NotImplementedError(type(node))
