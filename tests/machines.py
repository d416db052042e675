"""The machines and sites that ship with the project, and a world for the cycle that runs as fast as it can."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from controller.cycle import cycle
from controller.records import AxisMode, Link, Output, Quality, Request, RequestKind, Sample
from controller.settings import load_site
from controller.state import Setup, initial_state, prepare

ROOT = Path(__file__).parents[1]
SIMULATION = ROOT / "config" / "sites" / "simulation.toml"
MACHINES = ROOT / "config" / "machines"
CELLS = [f"cell_{i}" for i in range(1, 7)]  # the sensors of the simulation site
NOTHING = Request(RequestKind.NONE, 0, np.zeros(6))


def simulation_setup() -> Setup:
    files = load_site(SIMULATION)
    return prepare(files.machine, files.site)


@dataclass
class Bench:
    """The cycle with axes that are where they are told to be, on a stepped clock."""

    setup: Setup = field(default_factory=simulation_setup)
    lengths_m: np.ndarray = field(init=False)
    enabled: bool = False
    sensors: dict[str, np.ndarray] = field(default_factory=dict)  # fields of the sample; the site's cells at 0 if empty
    broken: Callable[[Sample], Sample] = lambda sample: sample  # what a fault makes of a sample
    tick: int = 0
    outputs: list[Output] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = initial_state(self.setup)
        k = len(self.setup.watch.required)
        good = {"sensor": np.zeros(k), "sensor_age_s": np.zeros(k), "sensor_quality": np.full(k, float(Quality.GOOD))}
        self.sensors = good | self.sensors
        self.lengths_m = self.state.command.position_m.copy()
        self._before, self._since_s = self.lengths_m, self.setup.period_s

    def step(self, request: Request = NOTHING, ticks: int = 1) -> Output:
        self.tick += ticks
        rate = (self.lengths_m - self._before) / self._since_s
        self._before, self._since_s = self.lengths_m, ticks * self.setup.period_s
        sample = self.broken(
            Sample(
                tick=self.tick, t_s=self.tick * self.setup.period_s, link=Link.UP, age_s=0.009,
                plc_cycle=5 * self.tick, seq_echo=self.state.command.seq, plc_state=0, plc_error=0,
                plc_stopped=False, drives_enabled=self.enabled, drives_fault=False, length_m=self.lengths_m,
                length_m_s=rate, setpoint_m=self.lengths_m, drive_n=np.zeros(6), **self.sensors,
            )
        )  # fmt: skip
        self.state, output = cycle(self.setup, self.state, sample, request)
        self.enabled = output.command.axis_mode is not AxisMode.STOP
        if output.command.axis_mode is AxisMode.FOLLOW:
            self.lengths_m = output.command.position_m
        self.outputs.append(output)
        return output

    def run(self, count: int) -> Output:
        for _ in range(count):
            output = self.step()
        return output

    def ready(self) -> None:
        self.step(ask(RequestKind.READY))
        self.run(5)


def ask(kind: RequestKind, pose: np.ndarray | None = None, **numbers: float) -> Request:
    request = Request(kind, 17, np.zeros(6) if pose is None else pose)
    return replace(request, **numbers)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def own_site(tmp_path: Path, site: Path = SIMULATION, **ports: int) -> str:
    """A simulation site with its own ports and folders."""
    text = site.read_text().replace('"../', f'"{ROOT}/config/')
    text = text.replace("port = 5020", f"port = {free_port()}")
    text = text.replace("127.0.0.1:48899", f"127.0.0.1:{ports.get('ads') or free_port()}")
    text = text.replace("port = 1883", f"port = {ports.get('mqtt') or free_port()}")
    text = text.replace("port = 8080", f"port = {ports.get('web', 0)}")
    text = text.replace('"run/', f'"{tmp_path}/run/')
    return text.replace('folder = "recordings"', f'folder = "{tmp_path}/recordings"')


def without_cell(text: str) -> str:
    """The site as on hardware: neither broker nor virtual cell, on whatever computer."""
    accepted = 'accept = ["kernel", "priority", "memory", "clock", "disk"]'
    return text.split("[broker]", maxsplit=1)[0].replace("[realtime]", f"[realtime]\n{accepted}")
