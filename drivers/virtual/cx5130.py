"""The virtual CX5130: its PLC program and drives, moving a simulated plant in real time.

    command block ──► PlcTwin ──► Drives ──► plant ──► status block         one PLC cycle, `Cx5130.cycle`
    (AMS server)      2 ms        0.5 ms     0.5 ms    (AMS server)

Pure and stepped. Arrays are (n,), one value an axis. Where the drives are cylinders, `Cylinders` stands for `Drives`.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from controller import schema
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, SYMBOL_COMMAND, SYMBOL_STATUS, DriveStatus, InputStatus
from drivers.profile import INPUTS
from drivers.virtual import ams
from drivers.virtual.homing import Referenced, References
from drivers.virtual.hydraulics import Cylinders
from drivers.virtual.plc_program import Axes, PlcTwin, axes_of, homing_of
from drivers.virtual.servo import Drives

Array = NDArray[np.float64]

PLANT_STEP_S = 0.0005


class Plant(Referenced, Protocol):
    """What is moved, in steps of `step_s` of its constructor. Only axes that are not absolute ask for references."""

    def step(self, force_n: Array | None) -> None:
        """Advance with these axis forces, or with the brakes closed."""
        ...

    @property
    def position_m(self) -> Array:
        """What the encoders show."""
        ...

    @property
    def velocity_m_s(self) -> Array:
        """Its rate."""
        ...

    @property
    def held_n(self) -> Array:
        """What closed brakes bear in place of cylinders, > 0 extends."""
        ...

    @property
    def cell_n(self) -> Array:
        """Load cells, > 0 in compression."""
        ...


class Cx5130:
    """PLC program, drives and plant behind an ADS device; every `cycle` is one PLC cycle of all of them."""

    def __init__(
        self,
        ads: schema.Ads,
        machine: schema.Machine,
        plant: Plant,
        cycle_s: float,
        hydraulics: schema.Hydraulics | None = None,
        homing: schema.Homing | None = None,
    ) -> None:
        """Put the two blocks into an ADS device at the address of `ads`; cylinders move on these hydraulics.

        Raises:
            ConfigurationError: some legs have cylinders and others not, the hydraulics no pressure, or cylinders are to
                home by force.
        """
        axes = axes_of(machine, hydraulics)
        known = homing_of(homing or schema.Homing(), len(axes.low_m))
        self.twin = PlcTwin(axes, cycle_s, known)
        self.twin.p = plant.position_m.copy()
        self.drives = _drives(machine, axes, hydraulics)
        self.plant = plant
        self.references = References(known, plant, self.drives)
        self.time_s = 0.0
        command = ams.Symbol(SYMBOL_COMMAND, "ST_PkmCommand", bytearray(COMMAND.itemsize))
        status = ams.Symbol(SYMBOL_STATUS, "ST_PkmStatus", bytearray(STATUS.itemsize))
        self.device = ams.Device(ads.ams_net_id, ads.ams_port, [command, status])
        self._cycle_s = cycle_s
        self._tau = PLANT_STEP_S * np.arange(1, round(cycle_s / PLANT_STEP_S) + 1)[:, None]
        self._command = np.frombuffer(command.data, COMMAND)
        self._status = np.frombuffer(status.data, STATUS)
        self._status["size"] = STATUS.itemsize
        self.layout_version = LAYOUT_VERSION
        self.input_raw = np.zeros(INPUTS, np.int32)
        self.input_status = np.full(INPUTS, int(InputStatus.NO_DATA), np.uint32)
        self.frozen = False  # the PLC task hangs, ADS goes on
        self.drive_share = np.ones(len(axes.low_m))  # of its force that a drive still has
        self._tell()

    def cycle(self) -> None:
        """Advance everything by one PLC cycle."""
        twin, drives, plant = self.twin, self.drives, self.plant
        running = self.device.state == ams.AdsState.RUN and not self.frozen
        if running:
            found = self.references.found(twin.offset_m) if twin.seeking else None
            encoder_m = plant.position_m
            position_m, command = encoder_m + twin.offset_m, self._command[0].copy()
            twin.step(self.time_s, command, position_m, plant.velocity_m_s, found, drives.force_n)
        else:
            twin.power_off()  # TwinCAT zeroes the outputs of a PLC that leaves RUN, a drive stops without new ones
        self.time_s += self._cycle_s
        if twin.powered:
            drives.velocity_feedforward, drives.forcing = twin.velocity_feedforward, twin.forcing
            # The drives interpolate within the cycle, as in cyclic synchronous position mode.
            slope = (twin.v - twin.v_before) / self._cycle_s
            v = twin.v_before + self._tau * slope
            p = twin.p_before - twin.offset_m + self._tau * (0.5 * (twin.v_before + v))
            self.references.watch(twin.seeking)
            for p_now, v_now in zip(p, v, strict=True):
                force_n = drives.step(p_now, v_now, twin.f, plant.position_m, plant.velocity_m_s)
                plant.step(force_n * self.drive_share)
                if twin.seeking:
                    self.references.look()
        else:
            drives.reset(plant.held_n)
            for _ in self._tau:
                plant.step(None)
        if running:
            self._tell()

    def pressures_pa(self) -> dict[str, Array]:
        """Pressures in the chambers of the cylinders, by side; none for machines without."""
        drives = self.drives
        return {"head": drives.head_pa, "rod": drives.rod_pa} if isinstance(drives, Cylinders) else {}

    def _tell(self) -> None:
        """Fill the status block as of the end of the cycle."""
        twin, plant, status = self.twin, self.plant, self._status
        status["version"] = self.layout_version
        status["seq_echo"], status["plc_cycle"] = twin.seq, twin.cycle
        status["plc_state"], status["plc_error"] = twin.state, twin.error
        for name, values in (  # a machine may have fewer axes than the struct
            ("position_m", plant.position_m + twin.offset_m),
            ("velocity_m_s", plant.velocity_m_s),
            ("setpoint_m", twin.p),
            ("force_n", self.drives.force_n),
            (
                "drive_status",
                DriveStatus.ENABLED * twin.powered | DriveStatus.FAULT * twin.faulty | DriveStatus.HOMED * twin.homed,
            ),
        ):
            status[name][0, : len(twin.p)] = values
        status["input_raw"], status["input_status"] = self.input_raw, self.input_status


def _drives(machine: schema.Machine, axes: Axes, hydraulics: schema.Hydraulics | None) -> Drives | Cylinders:
    if any(isinstance(schema.effective_leg(machine, i).drive, schema.HydraulicDrive) for i in range(len(machine.leg))):
        return Cylinders(machine, hydraulics or schema.Hydraulics(), axes, PLANT_STEP_S)
    return Drives(axes, PLANT_STEP_S)
