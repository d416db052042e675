"""The faults of the virtual cell by name, and the socket over which `pkm fault` switches them while the cell runs.

A fault is a name, and a value where it needs one; `off` ends it. One that hits the next N answers or connections takes
a number, or nothing for "until switched off".
"""

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from controller.datagram import MOST_BYTES, listen
from controller.errors import ConfigurationError
from drivers.exchange import LAYOUT_VERSION
from drivers.virtual import ams
from drivers.virtual.instruments import Behaviour, PtyLine, Slave
from drivers.virtual.sensing import InputFault

if TYPE_CHECKING:
    from drivers.virtual.cell import Cell

log = logging.getLogger(__name__)

NEW_BYTES = 0x400  # of the variable that an online change puts before the others

Switch = Callable[[str], Awaitable[None] | None]  # gets the value, or `off`


class Fault(NamedTuple):
    """One entry of the catalogue."""

    meaning: str
    value: str  # what may stand for it: empty where none is needed
    switch: Switch


class Switching(msgspec.Struct, forbid_unknown_fields=True):
    """A command to the cell: switch a fault for so long; without a name the catalogue is asked for."""

    name: str = ""
    value: str = ""
    for_s: float = 0.0  # 0: until switched off


class Reply(msgspec.Struct):
    """What came of it."""

    done: bool
    text: str


def catalogue(cell: "Cell") -> dict[str, Fault]:
    """Every fault that this cell can play."""
    found: dict[str, Fault] = {}
    _add_network(cell, found)
    _add_plc(cell, found)
    _add_sensors(cell, found)
    return found


# What a switch does to a thing that has an attribute for it.


def _flag(thing: object, attribute: str, off: bool = False) -> Switch:
    return lambda value: setattr(thing, attribute, (value != "off") is not off)


def _choice(thing: object, attribute: str, on: object, off: object) -> Switch:
    return lambda value: setattr(thing, attribute, off if value == "off" else on)


def _amount(thing: object, attribute: str, off: float = 0.0, kind: type[float] | type[int] = float) -> Switch:
    return lambda value: setattr(thing, attribute, kind(_number(value, off)))


def _counted(thing: object, attribute: str) -> Switch:
    return lambda value: setattr(thing, attribute, _number(value) if value else math.inf)


def _item(items: dict[str, float], name: str) -> Switch:
    return lambda value: items.update({name: _number(value)})


def _add_network(cell: "Cell", found: dict[str, Fault]) -> None:
    network = cell.network

    def fragment(value: str) -> None:
        network.piece_bytes, network.piece_pause_s = int(_number(value)), 0.0002

    async def unplug(value: str) -> None:
        await network.plug_in() if value == "off" else network.unplug()

    async def power(value: str) -> None:
        await (network.power_on() if value == "off" else network.power_off())

    def cut(_: str) -> None:
        network.cut()

    found |= {
        "net.latency": Fault("every answer comes so much later", "S", _amount(network, "latency_s")),
        "net.jitter": Fault("every answer comes up to so much later", "S", _amount(network, "jitter_s")),
        "net.lose-every": Fault("every N-th answer is lost", "N", _amount(network, "lose_every", kind=int)),
        "net.fragment": Fault("answers travel in pieces of N bytes", "N", fragment),
        "net.gather": Fault("N answers travel together", "N", _amount(network, "gather", 1, int)),
        "net.cut": Fault("every connection is reset, once", "", cut),
        "net.unplug": Fault("the cable is out: every packet is swallowed", "", unplug),
        "net.router-off": Fault("nothing listens any more, as while TwinCAT restarts", "", power),
    }
    for name, attribute, meaning in (
        ("net.no-route", "closed_connections", "connections are accepted and closed at once"),
        ("net.ignore", "ignored_requests", "requests are neither executed nor answered"),
        ("net.cut-request", "cut_requests", "the connection breaks before a request is executed"),
        ("net.cut-answer", "cut_answers", "the connection breaks after a request was executed"),
        ("net.lose", "lost_answers", "requests are executed, not answered"),
        ("net.late", "late_answers", "requests are executed, and answered 100 ms later"),
        ("net.truncate", "truncated_answers", "half an answer, then the connection is closed"),
        ("net.garble", "garbled_answers", "random bytes instead of an answer"),
        ("net.noise", "noisy_answers", "random bytes before an answer"),
        ("net.wrong-id", "wrong_ids", "answers carry the invoke id of another request"),
        ("net.stale", "stale_answers", "answers carry the data of the request before"),
        ("net.repeat", "repeated_answers", "the answer before comes once more, then the right one"),
        ("net.long", "long_answers", "answers have eight bytes too many"),
        ("net.short", "short_answers", "answers have eight bytes too few"),
    ):
        found[name] = Fault(meaning, "[N]", _counted(network, attribute))


def _add_plc(cell: "Cell", found: dict[str, Fault]) -> None:
    cx, device = cell.cx, cell.cx.device

    def online_change(_: str) -> None:
        device.online_change([ams.Symbol("GVL_New.stNew", "ST_New", bytearray(NEW_BYTES)), *device.symbols])

    def other_program(value: str) -> None:
        for symbol in device.symbols:
            symbol.name = symbol.name.removesuffix("Old") + ("" if value == "off" else "Old")
        device.online_change(device.symbols)

    def refuse(what: ams.Refusable) -> Switch:
        return lambda value: device.refuse(what, int(_number(value)), 0 if value == "off" else math.inf)

    def drive(index: int) -> Switch:
        return lambda value: cx.drive_share.put(index, value == "off")

    found |= {
        "plc.frozen": Fault("the PLC task hangs, ADS answers on", "", _flag(cx, "frozen")),
        "plc.online-change": Fault("variables move, old handles die", "", online_change),
        "plc.other-program": Fault("another program: the variables have other names", "", other_program),
        "plc.layout": Fault(
            "the status block of another release", "", _choice(cx, "layout_version", LAYOUT_VERSION + 1, LAYOUT_VERSION)
        ),
        "plc.refuse": Fault("every request gets ADS error CODE, such as 7", "CODE", refuse(ams.Refusable.ALL)),
        "plc.refuse-read": Fault("values are not read: ADS error CODE", "CODE", refuse(ams.Refusable.READ)),
        "plc.refuse-write": Fault("values are not written: ADS error CODE", "CODE", refuse(ams.Refusable.WRITE)),
    }
    for state in (ams.AdsState.STOP, ams.AdsState.CONFIG, ams.AdsState.EXCEPTION):
        on_off = _choice(device, "state", state, ams.AdsState.RUN)
        found[f"plc.{state.name.lower()}"] = Fault(f"the PLC goes to {state.name}", "", on_off)

    def no_mark(index: int) -> Switch:
        return lambda value: cx.references.missing.put(index, value != "off")

    def spike(index: int) -> Switch:
        return lambda value: cx.references.spike_n.put(index, _number(value))

    def block(index: int) -> Switch:
        return lambda value: cell.plant.block(index, value != "off")

    def stick(index: int) -> Switch:
        return lambda value: cell.plant.stick(index, _number(value))

    def lead(index: int) -> Switch:
        return lambda value: cell.plant.mislead(index, _travel(value))

    def swap(value: str) -> None:
        cell.plant.swap(None if value == "off" else _two_legs(value, len(cx.drive_share)))

    def push(value: str) -> None:
        numbers = [0.0] * 6 if value == "off" else [_number(part) for part in value.split(",")]
        cell.plant.push(numbers + [0.0] * (6 - len(numbers)))

    found["plant.push"] = Fault(
        "something pushes the platform: force, then moment about o, in base axes", "FX,FY,FZ,MX,MY,MZ", push
    )
    found["legs.swapped"] = Fault("power and encoder of two legs are interchanged, drives off", "I,J", swap)
    for i in range(len(cx.drive_share)):
        found |= {
            f"leg.{i + 1}.lead": Fault(f"leg {i + 1} goes so many times what its axis says, drives off", "S", lead(i)),
            f"leg.{i + 1}.stuck": Fault(f"leg {i + 1} rubs so much more", "N", stick(i)),
            f"leg.{i + 1}.no-mark": Fault(f"the reference mark of leg {i + 1} came off", "", no_mark(i)),
            f"leg.{i + 1}.force-spike": Fault(f"one reading of the force while leg {i + 1} homes", "N", spike(i)),
            f"leg.{i + 1}.blocked": Fault(f"leg {i + 1} cannot move", "", block(i)),
        }
        found[f"drive.{i + 1}.dead"] = Fault(f"the drive of leg {i + 1} gives no force", "", drive(i))


def _add_sensors(cell: "Cell", found: dict[str, Fault]) -> None:
    sensing = cell.sensing

    def turn(name: str) -> Switch:
        return lambda value: sensing.turned.discard(name) if value == "off" else sensing.turned.add(name)

    for sensor in sensing.fittings.sensors:
        name, unit = sensor.name, sensor.unit
        found |= {
            f"{name}.offset": Fault(f"{name} shows so much too much", unit, _item(sensing.offset, name)),
            f"{name}.drift": Fault(f"{name} drifts", f"{unit}/s", _item(sensing.drift_per_s, name)),
            f"{name}.turned": Fault(f"{name} is wired the wrong way round", "", turn(name)),
        }
        for wrong in (item for item in InputFault if name in sensing.inputs and item is not InputFault.NONE):
            switch = _choice(sensing.inputs[name], "fault", wrong, InputFault.NONE)
            found[f"{name}.{wrong.value}"] = Fault(f"input of {name}: {wrong.value.replace('-', ' ')}", "", switch)
    for name, slave in sensing.slaves.items():
        found |= {f"{name}.{word}": fault for word, fault in _slave(name, slave)}
    for name, instrument in (sensing.conditioners | sensing.inclinometers).items():
        for attribute in ("silent", "refuses", "halves", "noise", "without_y"):
            if hasattr(instrument, attribute):
                word = attribute.replace("_", "-")
                found[f"{name}.{word}"] = Fault(f"{name}: {word}", "", _flag(instrument, attribute))
    for name, thing in (sensing.slaves | sensing.conditioners).items():
        found[f"{name}.status"] = Fault(f"status word of {name}", "BITS", _amount(thing, "status", kind=int))
    for name, line in sensing.lines.items():
        if isinstance(line, PtyLine):
            switch = _flag(line, "plugged", off=True)
            found[f"{name}.unplugged"] = Fault(f"the adapter of {name} is pulled out", "", switch)
        else:
            switch = _flag(line, "hangs_up")
            found[f"{name}.hangs-up"] = Fault(f"the server of {name} accepts and closes", "", switch)


def _slave(name: str, slave: Slave) -> Iterator[tuple[str, Fault]]:
    def behave(behaviour: Behaviour) -> Switch:
        def switch(value: str) -> None:
            if behaviour is Behaviour.EXCEPTION and value != "off":
                slave.exception = int(_number(value))
            elif behaviour is Behaviour.LATE:
                slave.delay_s = _number(value)
            slave.behaviour = Behaviour.HONEST if value == "off" else behaviour

        return switch

    for behaviour in Behaviour:
        if behaviour is not Behaviour.HONEST:
            value = {Behaviour.EXCEPTION: "CODE", Behaviour.LATE: "S"}.get(behaviour, "")
            yield behaviour.name.lower().replace("_", "-"), Fault(f"{name} {behaviour.value}", value, behave(behaviour))


def _number(value: str, off: float = 0.0) -> float:
    if value == "off":
        return off
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _travel(value: str) -> float:
    travel = _number(value, 1.0)
    if travel == 0.0:
        raise ValueError
    return travel


def _two_legs(value: str, n: int) -> tuple[int, int]:
    i, j = (int(part) - 1 for part in value.split(","))
    if i == j or not (0 <= i < n and 0 <= j < n):
        raise ValueError
    return i, j


class Switches:
    """The listening side of `pkm fault`, in the event loop of the cell."""

    def __init__(self, cell: "Cell", path: Path) -> None:
        """Listen at `path`.

        Raises:
            ConfigurationError: there can be no socket.
        """
        self._faults = catalogue(cell)
        self._path = path
        try:
            self._socket = listen(path)
        except OSError as error:
            raise ConfigurationError(
                f"virtual_cell.control: cannot listen at {path}: {error.strerror or error}"
            ) from None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._heard)
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _heard(self) -> None:
        with suppress(OSError):
            data, sender = self._socket.recvfrom(MOST_BYTES)
            task = self._loop.create_task(self._answer(data, sender))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, data: bytes, sender: str | None) -> None:
        try:
            asked = msgspec.json.decode(data, type=Switching)
        except msgspec.DecodeError as error:
            reply = Reply(False, str(error))
        else:
            reply = await self.switch(asked)
        if sender:
            with suppress(OSError):
                self._socket.sendto(msgspec.json.encode(reply)[:MOST_BYTES], sender)

    async def switch(self, asked: Switching) -> Reply:
        """Do what is asked for."""
        if not asked.name:
            lines = (f"{name} {fault.value}".strip() for name, fault in self._faults.items())
            return Reply(True, "\n".join(lines))
        fault = self._faults.get(asked.name)
        if fault is None:
            return Reply(False, f"fault: found {asked.name!r}, `pkm fault SITE.toml` lists those of this cell")
        try:
            await self._set(fault, asked.value)
        except (ValueError, OverflowError):
            expected = f"a number ({fault.value}) or off" if fault.value else "nothing or off"
            return Reply(False, f"{asked.name}: found {asked.value!r}, expected {expected}")
        except OSError as error:
            return Reply(False, f"{asked.name}: cannot be done now: {error.strerror or error}")
        what = f"{asked.name} {asked.value}".strip()
        log.warning("fault switched: %s (%s)", what, fault.meaning)
        if asked.for_s > 0.0:
            self._loop.call_later(asked.for_s, self._end, asked.name)
            return Reply(True, f"{what}, for {asked.for_s:g} s: {fault.meaning}")
        return Reply(True, f"{what}: {fault.meaning}")

    def _end(self, name: str) -> None:
        task = self._loop.create_task(self._set(self._faults[name], "off"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        log.warning("fault switched: %s off", name)

    async def _set(self, fault: Fault, value: str) -> None:
        if not fault.value and value not in ("", "on", "off"):
            raise ValueError
        if fault.value and not fault.value.startswith("[") and not value:
            raise ValueError
        pending = fault.switch(value)
        if inspect.isawaitable(pending):
            await pending
