"""The Structured Text of deploy/twincat: it parses, and has the layouts, numbers and decisions of the Python side.

`structured_text` translates the function blocks without a library behind them, and they run here: FB_PkmPlc beside
`PlcTwin`, whose behaviour test_cx5130.py tests. No TwinCAT compiler takes part.
"""

import importlib
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
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, DriveStatus, InputStatus, PlcError, PlcState
from drivers.virtual import plc_program
from tests.drivers import structured_text
from tests.drivers.structured_text import declarations
from tests.machines import MACHINES

FOLDER = Path(__file__).parents[2] / "deploy" / "twincat"
FILES = sorted(FOLDER.glob("*.st"))
PACK = 8  # the pack mode of TwinCAT 3
TYPES = {  # size, also the natural alignment, and the NumPy type
    "UDINT": (4, "<u4"),
    "DINT": (4, "<i4"),
    "DWORD": (4, "<u4"),
    "LREAL": (8, "<f8"),
}
ONLY_PLC = {  # constants that the twin does not have
    "PI": math.pi,
    "NEVER_S": -1e9,
    "QUICK_STOP_RAMP_S": 0.5,
    "INPUT_STILL_S": 0.05,
    "MODE_POSITION": 8,  # of CiA 402
    "MODE_TORQUE": 10,
}
ELSEWHERE = {  # constants that have another name or another place in Python
    "AXES": exchange.AXES,
    "INPUTS": exchange.INPUTS,
    "LAYOUT_VERSION": exchange.LAYOUT_VERSION,
    "CYCLE_S": schema.VirtualCell().plc_cycle_s,
}

ENUMERATIONS = ("E_PkmAxisMode", "E_PkmPlcState", "E_PkmInputKind", "E_PkmHomingMethod")
BITS = {"E_PkmPlcError": PlcError, "E_PkmDriveStatus": DriveStatus, "E_PkmInputStatus": InputStatus}
INPUT_BITS = {  # of the terminals' status words, as the vendor's documents have them
    "EL3XXX": {
        0: InputStatus.UNDERRANGE,
        1: InputStatus.OVERRANGE,
        6: InputStatus.ERROR,
        14: InputStatus.INVALID,
    },
    "EL3356": {
        1: InputStatus.OVERRANGE,
        3: InputStatus.INVALID,
        6: InputStatus.ERROR,
        7: InputStatus.CALIBRATING,
    },
}
TOGGLE = 1 << 15


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
        if path.stem.startswith("GVL_") or path.stem in BITS:
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


def test_the_host_reads_what_the_readme_and_the_offsets_say(sources):
    sizes = {dut: layout(sources[dut])[1] for dut in ("ST_PkmCommand", "ST_PkmStatus")}
    assert sizes == {"ST_PkmCommand": 184, "ST_PkmStatus": 368}
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert {name: int(size) for name, size in re.findall(r"`SIZEOF\((\w+)\)` = (\d+)", text)} == sizes
    assert f"{sizes['ST_PkmCommand']} and {sizes['ST_PkmStatus']} bytes" in text
    offsets = {m.name: m.offset for m in layout(sources["ST_PkmStatus"])[0]}
    assert (offsets["aDriveStatus"], offsets["aInputRaw"], offsets["aInputStatus"]) == (216, 240, 304)


def test_every_field_of_the_status_is_written(sources):
    code = re.sub(r"//.*", "", (FOLDER / "PRG_Pkm.st").read_text(encoding="ascii"))
    written = set(re.findall(r"stNew\.(\w+)(?:\[i\])? :=", code))
    members = {m.name: m for m in layout(sources["ST_PkmStatus"])[0]}
    assert written == set(members)
    inputs = {n: d for b in sources["FB_PkmInputs"].items[0].declarations for n, d in declarations(b.items).items()}
    for name, single in (("aRaw", "nRaw"), ("aStatus", "nStatus")):
        member = members[f"aInput{name[1:]}"]
        assert str(inputs[name].spec) == f"ARRAY [1..{member.count}] OF {member.type}"
        assert str(inputs[single].spec) == member.type


def test_every_array_has_the_places_of_what_it_is_about():
    for path in FILES:
        for name, text in re.findall(r"(\w+)(?: AT %[IQ]\*)? : ARRAY\[1\.\.(\d+)\]", path.read_text(encoding="ascii")):
            inputs = path.stem == "FB_PkmInputs" or name.startswith("aInput")
            expected = 3 if name == "aKnots" else exchange.INPUTS if inputs else exchange.AXES
            assert int(text) == expected, f"{path.name}: {name}"


def test_python_objects_in_the_comments_exist():
    named = 0
    for path in FILES:
        text = re.sub(r"\n// ?", " ", path.read_text(encoding="ascii"))
        for attribute, module in re.findall(r"`([\w.]+)` of\s+([\w/]+)\.py", text):
            found = importlib.import_module(module.replace("/", "."))
            for part in attribute.split("."):
                found = getattr(found, part)
            named += 1
    assert named >= 10


def test_layout_rule_pads():
    text = "TYPE ST_X : STRUCT nA : UDINT; fB : LREAL; nC : ARRAY[0..2] OF UDINT; END_STRUCT END_TYPE"
    members, size = layout(parse_source_code(text).transform())
    assert [(m.offset, m.count) for m in members] == [(0, 1), (8, 1), (16, 3)]
    assert size == 32


@pytest.mark.parametrize(
    ("name", "enum"),
    [
        ("E_PkmAxisMode", AxisMode),
        ("E_PkmPlcState", PlcState),
        ("E_PkmHomingMethod", plc_program.HomingMethod),
    ],
)
def test_enumeration_is_the_enum(sources, name, enum):
    assert enumeration(sources[name]) == {member.name: member.value for member in enum}


@pytest.mark.parametrize(("name", "flag"), BITS.items())
def test_bits_are_the_flags(sources, name, flag):
    bits = constants(sources[name])
    assert {kind for kind, _ in declared(sources[name]).values()} == {"DWORD"}
    assert bits.pop("NONE", 0) == 0
    assert bits == {member.name: member.value for member in flag}


def test_constants_are_the_twins(sources):
    for name, value in constants(sources["GVL_Pkm"]).items():
        if name in ONLY_PLC:
            assert not hasattr(plc_program, name)
            assert value == pytest.approx(ONLY_PLC[name], rel=1e-14), name
        elif name in ELSEWHERE:
            assert value == ELSEWHERE[name], name
        else:
            assert value == getattr(plc_program, name), name


def test_the_twins_constants_are_all_there(sources):
    used = set()
    for function in (plc_program.PlcTwin, plc_program.axes_of):
        used |= set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", inspect.getsource(function)))
    used -= set(PlcState.__members__) | set(PlcError.__members__)
    used -= {"LEAST_LOAD"}  # of the drives' tuning
    assert {"LATE_S", "QUICK_STOP_S", "ENABLE_S", "POSITION_MARGIN_M"} <= used
    assert used <= set(constants(sources["GVL_Pkm"]))


def test_types_of_the_constants(sources):
    whole = {"AXES": "INT", "INPUTS": "INT", "LAYOUT_VERSION": "UDINT", "LATCHED": "DWORD"}
    whole |= dict.fromkeys(("MODE_POSITION", "MODE_TORQUE"), "SINT")
    blocks = {"stCommand": "ST_PkmCommand", "stStatus": "ST_PkmStatus"}
    for name, (kind, _) in declared(sources["GVL_Pkm"]).items():
        assert kind == (whole | blocks).get(name, "LREAL"), name


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
        "aForce_n": limits.force_n,
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


def test_case_knows_every_kind_of_input(sources):
    (loop,) = sources["FB_PkmInputs"].items[0].body.statements
    (case,) = [s for s in loop.statements.statements if isinstance(s, transform.CaseStatement)]
    matches = [str(match) for element in case.cases for match in element.matches]
    assert matches == [f"E_PkmInputKind.{kind}" for kind in INPUT_BITS]
    assert enumeration(sources["E_PkmInputKind"]) == {"NONE": 0, "EL3XXX": 1, "EL3356": 2}
    assert case.else_clause is not None  # NONE, and a number that is none


def test_methods_are_the_twins(sources):
    methods = {str(item.name) for item in sources["FB_PkmPlc"].items if isinstance(item, transform.Method)}
    twin = {
        camel(n.strip("_")) for n, f in vars(plc_program.PlcTwin).items() if inspect.isfunction(f) and n != "__init__"
    }
    assert twin - {"Step"} == methods - {"Rest"}  # the body of the block is `step`


def test_every_qualified_name_is_declared(sources):
    names = {stem: set(declared(s)) for stem, s in sources.items() if stem.startswith("GVL_")}
    names |= {stem: set(enumeration(sources[stem])) for stem in ENUMERATIONS}
    names |= {stem: set(constants(sources[stem])) for stem in BITS}
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


class Inputs:
    """FB_PkmInputs with terminals of one kind, the n-th in place n."""

    def __init__(self, sources, kind):
        world = structured_text.environment(sources, {})
        self.kind = getattr(world["E_PkmInputKind"], kind)
        self.machine, self.io = world["GVL_PkmMachine"], world["GVL_PkmIo"]
        self.machine.aInputKind = [None, *[self.kind] * exchange.INPUTS]
        self.block = structured_text.function_block(sources["FB_PkmInputs"], world)

    def cycle(self, word=0, turn=True):
        """One PLC cycle with this status word, without its toggle bit, everywhere."""
        toggle = (self.io.aInputWord[1] & TOGGLE) ^ (TOGGLE if turn else 0)
        self.io.aInputWord = [None, *[word | toggle] * exchange.INPUTS]
        self.block.run()
        return self.block.aRaw[1:], self.block.aStatus[1:]


@pytest.mark.parametrize("kind", INPUT_BITS)
def test_bits_of_the_terminals(sources, kind):
    inputs = Inputs(sources, kind)
    for bit in range(15):
        assert inputs.cycle(1 << bit)[1] == [INPUT_BITS[kind].get(bit, 0)] * exchange.INPUTS, bit
    together = sum(INPUT_BITS[kind].values()) - (InputStatus.INVALID if kind == "EL3356" else 0)  # see CALIBRATING
    assert inputs.cycle(TOGGLE - 1)[1] == [together] * exchange.INPUTS
    assert inputs.cycle(0)[1] == [0] * exchange.INPUTS


@pytest.mark.parametrize(("kind", "low", "high"), [("EL3XXX", -(2**15), 2**15 - 1), ("EL3356", -(2**31), 2**31 - 1)])
def test_values_stay_as_they_are(sources, kind, low, high):
    inputs = Inputs(sources, kind)
    values = [low, high, 0, -1, *range(12)]
    inputs.io.aInputValue16 = [None, *(values if kind == "EL3XXX" else [77] * 16)]
    inputs.io.aInputValue32 = [None, *(values if kind == "EL3356" else [77] * 16)]
    assert inputs.cycle() == (values, [0] * 16)


@pytest.mark.parametrize("kind", INPUT_BITS)
def test_a_toggle_bit_that_stands_still_is_no_data(sources, kind):
    inputs = Inputs(sources, kind)
    assert inputs.cycle(turn=False)[1] == [InputStatus.NO_DATA] * 16  # never turned yet
    inputs.io.aInputValue16 = inputs.io.aInputValue32 = [None, *range(16)]
    assert inputs.cycle(turn=True)[1] == [0] * 16
    for _ in range(25):  # 50 ms
        assert inputs.cycle(turn=False)[1] == [0] * 16
    assert inputs.cycle(turn=False) == (list(range(16)), [InputStatus.NO_DATA] * 16)
    assert inputs.cycle(1 << 6, turn=False)[1] == [InputStatus.NO_DATA | InputStatus.ERROR] * 16
    inputs.machine.aInputToggles[3] = False
    assert [i for i, status in enumerate(inputs.cycle(turn=False)[1], 1) if status == 0] == [3]
    assert inputs.cycle(turn=True)[1] == [0] * 16


def test_a_self_calibration_is_only_that(sources):
    inputs = Inputs(sources, "EL3356")
    inputs.cycle()
    for word in [1 << 7 | 1 << 3] * 100:
        assert inputs.cycle(word, turn=False)[1] == [InputStatus.CALIBRATING] * 16
    for _ in range(25):
        assert inputs.cycle(turn=False)[1] == [0] * 16
    assert inputs.cycle(turn=False)[1] == [InputStatus.NO_DATA] * 16
    inputs.io.aInputWcState = [None, *[True] * 16]
    assert inputs.cycle(1 << 7)[1] == [InputStatus.NO_DATA | InputStatus.CALIBRATING] * 16


@pytest.mark.parametrize("kind", INPUT_BITS)
def test_a_terminal_off_the_bus_keeps_its_value(sources, kind):
    inputs = Inputs(sources, kind)
    inputs.io.aInputValue16 = inputs.io.aInputValue32 = [None, *[5] * 16]
    inputs.cycle()
    inputs.io.aInputValue16 = inputs.io.aInputValue32 = [None, *[9] * 16]
    inputs.io.aInputWcState[4] = True
    raw, status = inputs.cycle()
    assert raw == [9, 9, 9, 5, *[9] * 12]
    assert status == [0, 0, 0, InputStatus.NO_DATA, *[0] * 12]
    inputs.io.aInputWcState[4] = False
    assert inputs.cycle() == ([9] * 16, [0] * 16)


def test_an_input_without_a_terminal_has_no_data(sources):
    inputs = Inputs(sources, "NONE")
    inputs.io.aInputValue16 = inputs.io.aInputValue32 = [None, *[5] * 16]
    assert inputs.cycle() == ([0] * 16, [InputStatus.NO_DATA] * 16)
    assert declared(sources["GVL_PkmMachine"])["aInputKind"] == (
        "ARRAY [1..16] OF E_PkmInputKind",
        "[16(E_PkmInputKind.NONE)]",
    )


class Beside:
    """FB_PkmPlc and PlcTwin on the same commands, encoders and clock, and axes that go where the twin wants them."""

    def __init__(self, sources, noise_m=0.0, homing=None):
        homing = plc_program.homing_of(homing or schema.Homing(), 6)
        self.twin = plc_program.PlcTwin(plc_program.axes_of(load_machine(MACHINES / "6-upru.toml")[0]), 0.002, homing)
        world = structured_text.environment(sources, {"stCommand": COMMAND.itemsize})
        self.plc = structured_text.function_block(sources["FB_PkmPlc"], world)
        self.limits = structured_text.function(sources["F_PkmAxesOf"], world)()
        self.command = np.zeros(1, COMMAND)
        self.machine = world["GVL_PkmMachine"]
        self.machine.eHomingMethod, self.machine.aHomingLength_m = homing.method, one_based(homing.length_m)
        for name in ("direction", "speed_m_s", "travel_m", "back_m", "force_n", "timeout_s"):
            known = next(
                n for n in vars(self.machine) if n.startswith("fHoming") and python_name(n) == f"homing_{name}"
            )
            setattr(self.machine, known, getattr(homing, name))
        self.found = plc_program.Found(np.zeros(6), np.zeros(6, dtype=bool), np.zeros(6))
        self.fields = [(m.name, python_name(m.name)) for m in layout(sources["ST_PkmCommand"])[0]]
        self.position_m, self.velocity_m_s = np.full(6, 0.93), np.zeros(6)
        self.force_n = np.array([80.0, -30.0, 20.0, 900.0, 0.0, -5.0])
        self.noise_m, self.random = noise_m, np.random.default_rng(4)
        self.cycles = self.forced = 0
        self.states, self.errors = set(), PlcError.NONE

    def send(self, **fields):
        known = {"size": COMMAND.itemsize, "version": LAYOUT_VERSION, "seq": self.command["seq"] + 1, **fields}
        for name, value in known.items():
            self.command[name] = value

    def cycle(self):
        now_s = self.cycles * 0.002
        self.cycles += 1
        on = self.plc.bPowered or (self.plc.bEnabling and now_s >= self.plc.fEnable_s - 1e-9)
        values = {st: self.command[0][name].tolist() for st, name in self.fields}
        self.plc.run(
            fNow_s=now_s,
            nAxes=6,
            bMayEnable=True,
            stCommand=structured_text.SimpleNamespace(
                **{name: [None, *value] if isinstance(value, list) else value for name, value in values.items()}
            ),
            stAxes=self.limits,
            aPosition_m=one_based(self.position_m),
            aVelocity_m_s=one_based(self.velocity_m_s),
            aDriveForce_n=one_based(self.force_n),
            aOn=[None, *[on] * 6],
            aDriveFault=[None, *[False] * 6],
            aMarked=one_based(self.found.marked),
            aMark_m=one_based(self.found.latch_m),
        )
        found = self.found._replace(force_n=self.force_n)
        self.twin.step(now_s, self.command[0].copy(), self.position_m, self.velocity_m_s, found, self.force_n)
        self.compare(self.twin.powered or not on)
        if self.twin.powered:
            self.position_m = self.twin.p + self.noise_m * self.random.standard_normal(6)
            self.velocity_m_s = self.twin.v.copy()
        else:
            self.velocity_m_s = np.zeros(6)

    def compare(self, set_points):
        """All but the set-points of a drive that goes off in this cycle: nobody uses them."""
        plc, twin = self.plc, self.twin
        assert (plc.nCycle, plc.nSeq, plc.eState, plc.nError, plc.bPowered) == (
            twin.cycle,
            twin.seq,
            twin.state,
            twin.error,
            twin.powered,
        )
        assert plc.aFaulty[1:] == twin.faulty.tolist()
        assert plc.fVelocityFeedforward == twin.velocity_feedforward
        assert plc.bForcing == twin.forcing
        assert (plc.bHomed, plc.bSeeking) == (twin.homed, twin.seeking)
        assert np.allclose(plc.aOffset_m[1:], twin.offset_m, rtol=0.0, atol=1e-12)
        self.forced += twin.forcing
        if set_points:
            mine = [array[1:] for array in (plc.aP, plc.aV, plc.aF, plc.aPBefore, plc.aVBefore)]
            its = [twin.p, twin.v, twin.f, twin.p_before, twin.v_before]
            assert np.allclose(mine, its, rtol=1e-12, atol=1e-12)  # PI has 15 digits there
        self.states.add(PlcState(plc.eState))
        self.errors |= PlcError(plc.nError)


def one_based(values):
    return [None, *values.tolist()]


def test_limits_are_the_twins(sources):
    found = structured_text.function(sources["F_PkmAxesOf"], structured_text.environment(sources, {}))()
    expected = plc_program.axes_of(load_machine(MACHINES / "6-upru.toml")[0])._asdict()
    assert {python_name(m.name) for m in layout(sources["ST_PkmAxes"])[0]} == set(expected) - {"least_mass_kg"}
    for name, values in vars(found).items():
        assert values[1:] == pytest.approx(expected[python_name(name)], rel=1e-12), name


def test_a_silent_host(sources):
    beside = Beside(sources)
    beside.send(mode=AxisMode.HOLD, period_s=0.01)
    while not beside.plc.bPowered:
        if beside.cycles % 5 == 0:
            beside.send(mode=AxisMode.HOLD, period_s=0.01)
        beside.cycle()
    beside.send(mode=AxisMode.HOLD, period_s=0.01)
    states = []
    for _ in range(60):
        beside.cycle()
        states.append(PlcState(beside.plc.eState).name)
    assert states == ["HOLDING"] * 20 + ["LATE"] * 31 + ["QUICK_STOP"] * 9  # 40 ms, then more than 100 ms
    assert beside.plc.nError == PlcError.WATCHDOG


def test_plc_program_beside_its_twin(sources):
    """Some thousand cycles of a host that moves, hesitates, falls silent, and sends nonsense now and then."""
    beside = Beside(sources, noise_m=2e-6)
    random = np.random.default_rng(11)
    phase, silent = 0.0, 0
    for tick in range(2400):
        silent = max(silent - 1, 0)
        if silent == 0:
            latched = beside.twin.state == PlcState.QUICK_STOP
            share = random.random() if tick // 150 % 2 else 0.5  # every second round without nonsense
            mode = AxisMode.FORCE if tick // 40 % 3 == 1 else AxisMode.FOLLOW
            if tick % 150 < 5 or (latched and share < 0.1):
                mode = AxisMode.STOP
            elif not beside.twin.powered or share < 0.02:
                mode = AxisMode.HOLD
            phase += 0.01 * random.choice([1.0, 1.0, 1.0, 1.3])
            amplitude_m = 0.2 if tick // 150 % 4 == 2 else 0.01  # 0.2: beyond the range
            start_m = beside.twin.p if beside.twin.powered else beside.position_m
            sine = np.sin(phase * np.array([3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
            target_m = start_m + np.clip(0.93 + amplitude_m * sine - start_m, -0.004, 0.004)
            fields = {
                "mode": mode,
                "host_time_s": 700.0 + 0.01 * tick,
                "period_s": 0.01,
                "velocity_feedforward": random.choice([0.0, 1.0, 1.5]),
                "position_m": target_m,
                "velocity_m_s": (target_m - start_m) / 0.01,
                "force_n": 5000.0 * random.standard_normal(6),
            }
            if share > 0.995:
                fields["position_m"] = target_m + 0.05
            elif share > 0.99:
                fields["force_n"] = [0.0, math.nan, 0.0, 0.0, 0.0, 0.0]
            elif share > 0.985:
                fields["version"] = LAYOUT_VERSION - 1
            elif share > 0.98:
                beside.position_m = beside.position_m + 0.03  # an axis that does not follow
            elif share > 0.975:
                beside.velocity_m_s = np.array([0.0, 0.6, 0.0, 0.0, -0.6, 0.0])  # too fast without a position loop
            elif share > 0.96:
                silent = int(random.integers(2, 20))
            beside.send(**fields)
        for _ in range(int(random.choice([4, 5, 5, 5, 6]))):
            beside.cycle()
    assert beside.states == set(PlcState) - {PlcState.HOMING}
    assert beside.errors == PlcError(sum(PlcError)) ^ PlcError.HOMING
    assert beside.forced > 1000


@pytest.mark.parametrize("method", ["reference", "force"])
@pytest.mark.parametrize("outwards", [False, True])
def test_homing_beside_its_twin(sources, method, outwards):
    """A host that homes, moves, homes again, hesitates and changes its mind, with axes that fail now and then."""
    direction = "extend" if outwards else "retract"
    given = schema.Homing(
        method=method, length_m=[0.91, 0.92, 0.93, 0.94, 0.95, 0.96], direction=direction, speed_m_s=0.05,
        travel_m=0.02, back_m=0.003, force_n=400.0, timeout_s=1.0,
    )  # fmt: skip
    beside = Beside(sources, homing=given)
    random = np.random.default_rng(3)
    way = 1.0 if outwards else -1.0
    ends, first_offset_m = [], np.zeros(6)
    for attempt in range(14):
        beside.send(mode=AxisMode.STOP)
        for _ in range(30):
            beside.cycle()
        if beside.twin.homed and not first_offset_m.any():
            first_offset_m = beside.twin.offset_m.copy()
        # references at the same counts of the encoders for ever
        at_m = 0.93 + way * np.linspace(0.004, 0.015, 6) + beside.twin.offset_m
        beside.position_m = 0.93 + beside.twin.offset_m
        fails = attempt % 5 if attempt < 10 else 0
        if fails == 1:
            at_m[2] += way  # never found
        beside.found = beside.found._replace(marked=np.zeros(6, dtype=bool), latch_m=at_m)
        for tick in range(180):
            mode = AxisMode.HOLD if fails == 2 and tick == 40 else AxisMode.FOLLOW if fails == 3 else AxisMode.HOME
            if not (fails == 4 and 45 < tick < 60):
                beside.send(mode=mode, period_s=0.01, position_m=beside.twin.p)
            for _ in range(5):
                there = way * (beside.position_m - at_m) >= 0.0
                beside.found = beside.found._replace(marked=beside.found.marked | there & beside.twin.seeking)
                force_n = np.where(there, way * 500.0, 20.0) if method == "force" else np.zeros(6)
                force_n[random.integers(6)] += way * 900.0 * (random.random() < 0.05)  # one odd reading
                beside.force_n = force_n
                beside.cycle()
            if beside.twin.state == PlcState.QUICK_STOP or (beside.twin.homed and tick > 30):
                break
        ends.append(beside.twin.state)
    assert ends[0] == PlcState.HOLDING and ends[1] == PlcState.QUICK_STOP and ends[4] == PlcState.QUICK_STOP
    assert set(ends[10:]) == {PlcState.HOLDING}
    assert PlcError.HOMING in beside.errors and PlcState.HOMING in beside.states
    # the lengths of marks and stops are those of the file
    assert np.abs(beside.twin.offset_m - first_offset_m).max() < (1e-9 if method == "reference" else 3e-3)
