"""Read and check machine and site files: every violation becomes one sentence with file, key, found, expected."""

import difflib
import math
import re
import reprlib
import stat
import tomllib
import typing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from controller import schema
from controller.errors import ConfigurationError
from controller.records import POSE

T = TypeVar("T")

_SHORT = reprlib.Repr()  # what was found may be a whole file
_SHORT.maxstring = _SHORT.maxother = 100


class SiteFiles(NamedTuple):
    """A site with its machine, and the texts they were read from."""

    site: schema.Site
    machine: schema.Machine
    site_text: str
    machine_text: str
    machine_path: Path
    path: Path  # of the site file
    track_texts: dict[str, str] = {}  # noqa: RUF012  the CSV files of tracks, by name of the track


def load_site(path: Path) -> SiteFiles:
    """Read a site file and the machine file it names.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    site_text = text_of(path)
    site = parse(site_text, schema.Site, path)
    _check_site(site, path)
    machine_path = path.parent / site.machine
    machine, machine_text = load_machine(machine_path)
    _check_homing(site.homing, len(machine.leg), path)
    texts = {
        name: text_of(path.parent / track.file)
        for name, track in site.tracks.items()
        if isinstance(track, schema.CsvTrack)
    }
    return SiteFiles(site, machine, site_text, machine_text, machine_path, path, texts)


def load_machine(path: Path) -> tuple[schema.Machine, str]:
    """Read a machine file; also returns its text.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    text = text_of(path)
    machine = parse(text, schema.Machine, path)
    _check_machine(machine, path)
    return machine, text


def parse(text: str, kind: type[T], path: Path) -> T:
    """Turn the text of a TOML file into `kind`.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    try:
        data = tomllib.loads(text)
        _check_values(data, path, "")
    except RecursionError:
        raise ConfigurationError(f"{path}: tables or arrays are nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits is none of tomllib's own errors
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {_explain(str(error), data, kind)}") from None


def text_of(path: Path) -> str:
    """The text of a file.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not a text file in UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None


def secret_of(path: Path, key: str) -> str:
    """The text of a file that nobody but its owner may read; `key` is where the site file names it.

    Raises:
        ConfigurationError: with the sentence for the user, without a word of what the file holds.
    """
    try:
        open_to = stat.S_IMODE(path.stat().st_mode) & 0o077
    except OSError as error:
        raise ConfigurationError(f"{key}: {path}: {error.strerror}") from None
    if open_to:
        raise ConfigurationError(
            f"{key}: {path}: found a file that others may use (mode {stat.S_IMODE(path.stat().st_mode):04o}), expected "
            f"one for its owner only: chmod 600 {path}"
        )
    try:
        return text_of(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{key}: {error}") from None


def _check_values(value: Any, path: Path, key: str) -> None:
    """Refuse what TOML allows and nothing here can take, wherever it stands.

    That is nan and inf, integers of more than 64 bits, NUL in texts, line breaks and the like in keys.
    """
    found = expected = ""
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            if not name.isprintable():
                found, expected = f"the key {_SHORT.repr(name)}", "a name of printable characters"
            _check_values(item, path, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for i, item in enumerate(cast("list[Any]", value)):
            _check_values(item, path, f"{key}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        found, expected = f"{value}", "a finite number"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        found, expected = "an integer of more than 64 bits", "a smaller number"
    elif isinstance(value, str) and "\0" in value:
        found, expected = _SHORT.repr(value), "a text without NUL"
    if expected:
        raise ConfigurationError(f"{path}: {key}: found {found}, expected {expected}")


def _explain(message: str, data: dict[str, Any], kind: type) -> str:
    """msgspec's message as key, found, expected; an unknown key gets the nearest known name."""
    key = _named(message, data, kind)
    message = message.partition(" - at `$")[0]
    if unknown := re.search(r"unknown field `(.*)`", message):
        name = f"{key}.{unknown[1]}" if key else unknown[1]
        known = _known_keys(kind)
        near = difflib.get_close_matches(unknown[1], known, 1, 0.5)
        stem = re.sub(r"(_[a-z0-9]+)$", "", unknown[1])
        same_quantity = sorted(k for k in known if k.startswith(stem + "_"))
        hint = (same_quantity or near or [""])[0]
        return f"{name}: unknown key" + (f", did you mean {hint}?" if hint else "")
    if missing := re.search(r"missing required field `(.*)`", message):
        return f"{key + '.' if key else ''}{missing[1]}: this key is missing"
    found = _at(data, key)
    expected = message.removeprefix("Expected ").split(", got ")[0].replace("`", "")
    if expected.startswith("Invalid "):
        expected = "one of the values in config/README.md"
    return f"{key}: found {_SHORT.repr(found)}, expected {expected}"


def _named(message: str, data: dict[str, Any], kind: type) -> str:
    """The path in msgspec's message, with the keys of maps, which it calls `[...]`.

    It is the first item with which alone in the map the message is the same: `data` keeps nothing else there.
    """
    key = message.partition(" - at `$")[2].rstrip("`").removeprefix(".")
    for _ in range(key.count("[...]")):
        before, _, after = key.partition("[...]")
        table = _at(data, before)
        if not isinstance(table, dict):
            break
        items = dict(cast("dict[str, Any]", table))
        for name, item in items.items():
            cast("dict[str, Any]", table).clear()
            table[name] = item
            key = f"{before}.{name}{after}"
            try:
                msgspec.convert(data, kind)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    break
    return key


def _at(data: Any, key: str) -> Any:
    """The value at a path like `leg[2].base_axis`."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", key):
        try:
            data = data[int(index)] if index else data[name]
        except (KeyError, IndexError, TypeError):
            break
    return data


def _known_keys(kind: type) -> set[str]:
    """Names of all keys in a table type and the tables below it."""
    names: set[str] = set()
    pending: list[Any] = [kind]
    while pending:
        item = pending.pop()
        if isinstance(item, type) and issubclass(item, msgspec.Struct):
            for field in msgspec.structs.fields(item):
                names.add(field.name)
                pending.append(field.type)
        else:
            pending.extend(typing.get_args(item))
    return names


def _check_site(site: schema.Site, path: Path) -> None:
    """What types cannot say: numbers inside the addresses."""
    if max(map(int, site.ads.ams_net_id.split("."))) > 255:
        raise ConfigurationError(
            f"{path}: ads.ams_net_id: found {site.ads.ams_net_id!r}, expected six numbers from 0 to 255"
        )
    if site.stream and not (
        (at := re.fullmatch(r"[A-Za-z0-9.-]+:([0-9]{1,5})", site.stream.address)) and int(at[1]) < 65536
    ):
        raise ConfigurationError(
            f"{path}: stream.address: found {_SHORT.repr(site.stream.address)}, expected HOST:PORT"
        )
    found = re.fullmatch(r"[A-Za-z0-9.-]+(?::([0-9]{1,5}))?", site.ads.address)
    if found is None or not 0 < int(found[1] or 1) < 65536:
        raise ConfigurationError(
            f"{path}: ads.address: found {_SHORT.repr(site.ads.address)}, expected HOST or HOST:PORT"
        )


def _check_homing(homing: schema.Homing, legs: int, path: Path) -> None:
    """What types cannot say: methods that look for something need to know where it is, for each leg."""
    if homing.method == "absolute":
        return
    if homing.length_m is None:
        raise ConfigurationError(f'{path}: homing.length_m: this key is missing, method "{homing.method}" needs it')
    if isinstance(homing.length_m, list) and len(homing.length_m) != legs:
        raise ConfigurationError(
            f"{path}: homing.length_m: found {len(homing.length_m)} numbers, expected one, or {legs}: one a leg"
        )


def _check_machine(machine: schema.Machine, path: Path) -> None:
    """What types cannot say: ranges in order, axes with a direction, tensors that can be tensors."""

    def refuse(key: str, found: object, expected: str) -> None:
        raise ConfigurationError(f"{path}: {key}: found {found}, expected {expected}")

    ranges: list[tuple[str, schema.Range]] = [
        (f"platform.limits.{name}", getattr(machine.platform.limits, name)) for name in POSE
    ]
    ranges.append(("legs.limits.length_m", machine.legs.limits.length_m))
    tensors = [("platform.inertia_kg_m2", machine.platform.inertia_kg_m2)]
    tensors += [(f"legs.links.{name}.inertia_kg_m2", link.inertia_kg_m2) for name, link in machine.legs.links.items()]
    for i, leg in enumerate(machine.leg):
        if leg.limits:
            ranges.append((f"leg[{i}].limits.length_m", leg.limits.length_m))
        for name, link in (leg.links or {}).items():
            tensors.append((f"leg[{i}].links.{name}.inertia_kg_m2", link.inertia_kg_m2))
        for name in ("base_axis", "platform_axis"):
            axis = getattr(leg, name)
            if axis is not None and not 0.5 < math.hypot(*axis) < 2.0:
                refuse(f"leg[{i}].{name}", list(axis), "a direction, a vector of length 1")
        whole = schema.effective_leg(machine, i)
        kind, friction, links, cell = whole.kind, whole.friction, whole.links, whole.cell
        if friction.spherical_nm_s_rad and kind != "UPS":
            refuse(
                "legs.friction.spherical_nm_s_rad",
                friction.spherical_nm_s_rad,
                f"0: leg {i + 1}, {kind}, has no S joint",
            )
        if friction.normal and kind not in ("UPS", "UPRU"):
            refuse("legs.friction.normal", friction.normal, f"0: the seal load of leg {i + 1}, {kind}, is not known")
        for name in cell.links_below if cell else ():
            if name not in links or links[name].group == "lower":
                sliding = [known for known, link in links.items() if link.group != "lower"]
                refuse(f"cell.links_below of leg {i + 1}", repr(name), f"names of sliding links of that leg, {sliding}")
    for key, (low, high) in ranges:
        if not low < high:
            refuse(key, [low, high], "[smallest, largest] in this order")
    for key, tensor in tensors:
        if any(tensor[i][j] != tensor[j][i] for i in range(3) for j in range(i)):
            refuse(key, [list(row) for row in tensor], "a symmetric tensor")
        if not _semidefinite(tensor):
            refuse(key, [list(row) for row in tensor], "a tensor with no negative principal moment")


def _semidefinite(tensor: schema.Tensor) -> bool:
    """All principal minors of a symmetric 3x3 not negative, rounding aside."""
    scale = max(abs(value) for row in tensor for value in row) or 1.0
    (a, d, e), (_, b, f), (_, _, c) = [[value / scale for value in row] for row in tensor]
    pairs = (a * b - d * d, a * c - e * e, b * c - f * f)
    determinant = a * (b * c - f * f) - d * (d * c - f * e) + e * (d * f - b * e)
    return min(a, b, c, *pairs, determinant) >= -1e-12
