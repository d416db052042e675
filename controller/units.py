"""The unit that the name of a key says: `_m_s2` is m/s², as in docs/reference/conventions.md."""

import re

UNITS = {
    "m": "m", "s": "s", "n": "N", "nm": "N m", "rad": "rad", "kg": "kg", "hz": "Hz", "pa": "Pa", "ma": "mA", "mv": "mV",
    "v": "V", "1": "1", "bytes": "B", "seconds": "s",
}  # fmt: skip


def unit_of(key: str) -> str:
    """The unit in the suffix of a key; empty where it has none, or where it belongs to a number in the name."""
    unit, over = "", list[str]()
    for part in reversed(key.split("_")):
        base = re.fullmatch(r"([a-z]+|1)([23]?)", part)
        if base is None or base[1] not in UNITS:
            if part.isdecimal():  # at_4_ma is a value at that current, not a current
                return ""
            break
        over.insert(0, UNITS[base[1]] + {"2": "²", "3": "³", "": ""}[base[2]])
    if not over or len(over) == len(key.split("_")) > 1:
        return ""
    if over[-2:] in (["kg", "m"], ["kg", "m²"]):  # a moment, an inertia
        return " ".join(over[-2:])
    unit, below = over[0], over[1:]
    if unit == "N" and below[:1] in (["s"], ["s²"]):  # N s/m
        unit, below = f"N {below[0]}", below[1:]
    if unit == "N m" and below[:1] == ["s"]:
        unit, below = "N m s", below[1:]
    return unit + ("/" + (below[0] if len(below) == 1 else f"({' '.join(below)})") if below else "")
