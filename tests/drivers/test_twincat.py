"""The Structured Text of deploy/twincat: it parses, and its layouts and numbers are those of the Python side.

Nothing here runs the PLC program; its behaviour is that of `PlcTwin`, which test_cx5130.py tests.
"""

import inspect
import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from blark import transform
from blark.parse import parse_source_code

from controller import schema
from controller.records import AxisMode
from controller.settings import load_machine
from drivers import exchange
from drivers.exchange import COMMAND, STATUS, DriveStatus, PlcError, PlcState
from drivers.virtual import cx5130
from tests.machines import MACHINES

FOLDER = Path(__file__).parents[2] / "deploy" / "twincat"
FILES = sorted(FOLDER.glob("*.st"))
PACK = 8  # the pack mode of TwinCAT 3
TYPES = {  # size, also the natural alignment, and the NumPy type
    "UDINT": (4, "<u4"),
    "DWORD": (4, "<u4"),
    "LREAL": (8, "<f8"),
}
ONLY_PLC = {"PI", "NEVER_S", "QUICK_STOP_RAMP_S"}  # constants that the twin does not have
ELSEWHERE = {  # constants that have another name or another place in Python
    "AXES": exchange.AXES,
    "LAYOUT_VERSION": exchange.LAYOUT_VERSION,
    "CYCLE_S": schema.VirtualCell().plc_cycle_s,
    "LATCHED": int(cx5130._LATCHED),
}


class Member(NamedTuple):
    """A member of a DUT as TwinCAT lays it out."""

    name: str
    type: str
    count: int
    offset: int


@pytest.fixture(scope="module")
def sources() -> dict[str, transform.SourceCode]:
    """Every file, parsed once: an Earley parser takes its time."""
    parsed = {}
    for path in FILES:
        result = parse_source_code(path.read_text(encoding="ascii"), fn=path)
        assert result.exception is None, f"{path.name}: {result.exception}"
        parsed[path.stem] = result.transform()
    return parsed


def python_name(name: str) -> str:
    """aVelocity_m_s -> velocity_m_s, nSeqEcho -> seq_echo: drop the type letter, break at capitals."""
    assert re.fullmatch(r"[nfab][A-Z]\w*", name), name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[1:]).lower()


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def layout(source: transform.SourceCode) -> tuple[list[Member], int]:
    """Members and total size under TwinCAT's rule: natural alignment, at most the pack mode."""
    members, offset, widest = [], 0, 1
    for line in source.items[0].declaration.declarations:
        kind, count = str(line.init.spec), 1
        if isinstance(line.init, transform.ArrayTypeInitialization):
            (subrange,) = line.init.spec.subranges
            count = int(str(subrange.stop)) - int(str(subrange.start)) + 1
            kind = str(line.init.spec.base_type_name)
        size, _ = TYPES[kind]
        alignment = min(size, PACK)
        widest = max(widest, alignment)
        for variable in line.variables:
            offset += -offset % alignment
            members.append(Member(str(variable.variable.name), kind, count, offset))
            offset += size * count
    return members, offset + -offset % widest


def enumeration(source: transform.SourceCode) -> dict[str, int]:
    return {str(v.name): int(str(v.value)) for v in source.items[0].declaration.init.spec.values}


def declared(source: transform.SourceCode) -> dict[str, tuple[str, str]]:
    """Type and initial value of the variables of a global list, as text."""
    found = {}
    for block in source.items:
        for item in block.items:
            value = getattr(item.init, "value", None)
            for variable in item.variables:
                name = str(variable).split(" ")[0]
                found[name] = (str(item.init.spec), "" if value is None else str(value))
    return found


def constants(source: transform.SourceCode) -> dict[str, float]:
    (block,) = [b for b in source.items if b.attrs is not None and "CONSTANT" in b.attrs.name.upper()]
    return {str(name): float(str(item.init.value)) for item in block.items for name in item.variables}


def test_every_file_parses_and_is_named_after_its_one_object(sources):
    assert FILES
    for path in FILES:
        text = path.read_text(encoding="ascii")
        if path.name.startswith(("GVL_", "E_PkmPlcError", "E_PkmDriveStatus")):
            assert all(isinstance(item, transform.GlobalVariableDeclarations) for item in sources[path.stem].items)
        else:
            objects = re.findall(r"^(?:TYPE|FUNCTION|FUNCTION_BLOCK|PROGRAM) (\w+)", text, re.MULTILINE)
            assert objects == [path.stem]
        assert all(len(line) <= 120 for line in text.splitlines()), path.name
        assert set(re.findall(r"'pack_mode' := '(\d+)'", text)) <= {str(PACK)}


@pytest.mark.parametrize(("dut", "dtype"), [("ST_PkmCommand", COMMAND), ("ST_PkmStatus", STATUS)])
def test_struct_is_the_dtype(sources, dut, dtype):
    members, size = layout(sources[dut])
    assert [python_name(m.name) for m in members] == list(dtype.names)
    for member in members:
        field, offset = dtype.fields[python_name(member.name)][:2]
        base, shape = field.subdtype or (field, (1,))
        assert base == np.dtype(TYPES[member.type][1]), member.name
        assert shape == (member.count,), member.name
        assert offset == member.offset, member.name
    assert size == dtype.itemsize


@pytest.mark.parametrize("dut", ["ST_PkmCommand", "ST_PkmStatus"])
def test_offsets_in_the_comments_are_true(sources, dut):
    members, size = layout(sources[dut])
    text = (FOLDER / f"{dut}.st").read_text(encoding="ascii")
    assert re.findall(r"(\w+) : [^;]+; +// +(\d+)", text) == [(m.name, str(m.offset)) for m in members]
    assert f" {size} bytes" in text


def test_layout_rule_pads():
    text = "TYPE ST_X : STRUCT nA : UDINT; fB : LREAL; nC : ARRAY[0..2] OF UDINT; END_STRUCT END_TYPE"
    members, size = layout(parse_source_code(text).transform())
    assert [(m.offset, m.count) for m in members] == [(0, 1), (8, 1), (16, 3)]
    assert size == 32


@pytest.mark.parametrize(("name", "enum"), [("E_PkmAxisMode", AxisMode), ("E_PkmPlcState", PlcState)])
def test_enumeration_is_the_enum(sources, name, enum):
    assert enumeration(sources[name]) == {member.name: member.value for member in enum}


@pytest.mark.parametrize(("name", "flag"), [("E_PkmPlcError", PlcError), ("E_PkmDriveStatus", DriveStatus)])
def test_bits_are_the_flags(sources, name, flag):
    bits = constants(sources[name])
    assert bits.pop("NONE", 0) == 0
    assert bits == {member.name: member.value for member in flag}


def test_constants_are_the_twins(sources):
    for name, value in constants(sources["GVL_Pkm"]).items():
        if name in ONLY_PLC:
            assert not hasattr(cx5130, name)
        elif name in ELSEWHERE:
            assert value == ELSEWHERE[name], name
        else:
            assert value == getattr(cx5130, name), name


def test_the_twins_constants_are_all_there(sources):
    used = set()
    for function in (cx5130.PlcTwin, cx5130.axes_of):
        used |= set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", inspect.getsource(function)))
    used -= set(PlcState.__members__) | set(PlcError.__members__)
    used -= {"LEAST_LOAD"}  # of the drives' tuning
    assert {"LATE_S", "QUICK_STOP_S", "ENABLE_S", "POSITION_MARGIN_M"} <= used
    assert used <= set(constants(sources["GVL_Pkm"]))


def test_pi(sources):
    assert constants(sources["GVL_Pkm"])["PI"] == pytest.approx(math.pi, rel=1e-14)


def test_symbols_of_the_exchange(sources):
    variables = declared(sources["GVL_Pkm"])
    for symbol, dut in ((exchange.SYMBOL_COMMAND, "ST_PkmCommand"), (exchange.SYMBOL_STATUS, "ST_PkmStatus")):
        list_name, name = symbol.split(".")
        assert list_name == "GVL_Pkm"
        assert variables[name][0] == dut


def test_machine_is_the_example(sources):
    machine = load_machine(MACHINES / "6-upru.toml")[0]
    limits, drive = machine.legs.limits, machine.legs.drive
    expected = {
        "aLengthLow_m": limits.length_m[0],
        "aLengthHigh_m": limits.length_m[1],
        "aSpeed_m_s": limits.speed_m_s,
        "aAcceleration_m_s2": limits.acceleration_m_s2,
        "aLead_m": drive.lead_m,
        "aGearRatio": drive.gear_ratio,
        "aRatedTorque_nm": drive.rated_torque_nm,
        "aPeakTorque_nm": drive.peak_torque_nm,
    }
    variables = declared(sources["GVL_PkmMachine"])
    for name, value in expected.items():
        kind, initial = variables[name]
        assert kind == "ARRAY [1..6] OF LREAL"
        assert float(re.fullmatch(r"\[6\((.+)\)\]", initial)[1]) == value, name
    assert variables["bParametrised"][1].upper() == "FALSE"


def test_case_knows_every_state(sources):
    block = sources["FB_PkmPlc"].items[0]
    (case,) = [s for s in block.body.statements if isinstance(s, transform.CaseStatement)]
    assert str(case.expression) == "eState"
    matches = [str(match) for element in case.cases for match in element.matches]
    assert sorted(matches) == sorted(f"E_PkmPlcState.{state.name}" for state in PlcState)


def test_methods_are_the_twins(sources):
    methods = {str(item.name) for item in sources["FB_PkmPlc"].items if isinstance(item, transform.Method)}
    twin = {camel(n.strip("_")) for n, f in vars(cx5130.PlcTwin).items() if inspect.isfunction(f) and n != "__init__"}
    assert twin - {"Step"} == methods - {"Rest"}  # the body of the block is `step`


def test_every_qualified_name_is_declared(sources):
    names = {stem: set(declared(s)) for stem, s in sources.items() if stem.startswith("GVL_")}
    names |= {stem: set(enumeration(sources[stem])) for stem in ("E_PkmAxisMode", "E_PkmPlcState")}
    names |= {stem: set(constants(sources[stem])) for stem in ("E_PkmPlcError", "E_PkmDriveStatus")}
    for dut, variables in {"ST_PkmCommand": ["stCommand"], "ST_PkmStatus": ["stNew"], "ST_PkmAxes": ["stAxes"]}.items():
        members = {m.name for m in layout(sources[dut])[0]}
        names |= dict.fromkeys(variables, members)
    used = 0
    for path in FILES:
        code = re.sub(r"//.*", "", path.read_text(encoding="ascii"))
        for owner, name in re.findall(r"(?<![.\w])(\w+)\.([A-Za-z]\w*)", code):
            if owner.startswith(("GVL_", "E_Pkm")) or owner in names:
                assert name in names[owner], f"{path.name}: {owner}.{name}"
                used += 1
    assert used > 100


def test_torque_is_the_inverse_of_the_force():
    text = (FOLDER / "FB_PkmAxes.st").read_text(encoding="ascii")
    code = " ".join(re.sub(r"//.*", "", text).split())
    values = {
        "GVL_Pkm.PI": math.pi,
        "GVL_PkmMachine.aLead_m[i]": 0.01,
        "GVL_PkmMachine.aGearRatio[i]": 3.0,
        "GVL_PkmMachine.aRatedTorque_nm[i]": 1.27,
        "GVL_PkmMachine.aTorqueSign[i]": -1.0,
        "aF[i]": 250.0,
    }

    def evaluate(expression: str) -> float:
        for name, value in sorted(values.items(), key=lambda pair: -len(pair[0])):
            expression = expression.replace(name, repr(value))
        assert re.fullmatch(r"[-+*/()\d.e ]+", expression), expression
        return eval(expression)

    values["fTorque_nm"] = evaluate(re.search(r"fTorque_nm := (aF[^;]+);", code)[1])
    assert values["fTorque_nm"] == pytest.approx(250.0 * 0.01 / (2.0 * math.pi * 3.0))
    per_mille = evaluate(re.search(r"LIMIT\(-32767\.0, ([^,]+), 32767\.0\)", code)[1])
    values["INT_TO_LREAL(GVL_PkmIo.aActualTorque[i])"] = per_mille
    assert evaluate(re.search(r"aForce_n\[i\] := ([^;]+);", code)[1]) == pytest.approx(250.0)
