"""A machine as the text of a machine file, such as identification writes."""

import json
from typing import Any, cast

import msgspec

from controller import schema


def machine_text(machine: schema.Machine, comments: list[str]) -> str:
    """TOML that reads back to the same machine; what is not set, or as it is by default, is left out."""
    lines = [f"# {line}".rstrip() for line in comments]
    data = msgspec.to_builtins(machine)
    _table(lines, "", _without_defaults(data, machine))
    return "\n".join(lines) + "\n"


def _without_defaults(data: Any, given: Any) -> Any:
    """The same without keys that have their default value, tables included."""
    if isinstance(given, list):
        items = zip(cast("list[Any]", data), cast("list[Any]", given), strict=True)
        return [_without_defaults(value, item) for value, item in items]
    if isinstance(given, dict):
        tables = cast("dict[str, Any]", given)
        return {key: _without_defaults(data[key], item) for key, item in tables.items()}
    if not isinstance(given, msgspec.Struct):
        return data
    fields = msgspec.structs.fields(given)
    plain = {field.name for field in fields if getattr(given, field.name) == field.default}
    known = {field.name for field in fields}
    tag = {key: value for key, value in data.items() if key not in known}  # the kind of a table of several kinds
    return tag | {key: _without_defaults(data[key], getattr(given, key)) for key in data if key in known - plain}


def _table(lines: list[str], path: str, table: dict[str, Any]) -> None:
    def is_table(value: Any) -> bool:
        return isinstance(value, dict)

    def is_tables(value: Any) -> bool:
        return isinstance(value, list) and any(is_table(item) for item in cast("list[Any]", value))

    for key, value in table.items():
        if not is_table(value) and not is_tables(value):
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in table.items():
        name = f"{path}.{_key(key)}" if path else _key(key)
        for item in cast("list[Any]", value) if is_tables(value) else [value] if is_table(value) else []:
            if is_tables(value) or not all(map(is_table, item.values())):  # a table of tables needs no header
                lines.extend(["", f"[[{name}]]" if is_tables(value) else f"[{name}]"])
            _table(lines, name, item)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's basic strings are JSON's
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in cast("list[Any]", value)) + "]"
    return str(value).lower() if isinstance(value, bool) else repr(value)
