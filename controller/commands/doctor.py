"""`pkm doctor`: is this computer, with what it is connected to, fit to control a machine, and if not, what to do.

What the operating system tells at once is judged in `controller.service.computer`, and at every start, too. Here is
what takes time or a device: disk, network, broker, certificates, PLC and instruments, the watchdog, jitter.
"""

import asyncio
import contextlib
import io
import json
import math
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np

from controller import clock, schema
from controller.commands.check import try_devices
from controller.errors import ConfigurationError
from controller.gateway.mqtt import credentials
from controller.gateway.mqtt.client import in_words
from controller.records import Array, AxisMode, Command, Sample
from controller.service import computer, realtime
from controller.service.computer import Finding
from controller.service.sole import sole_controller
from controller.settings import SiteFiles, load_site
from drivers.ads import AdsDriver
from drivers.ads_link import split_address
from drivers.exchange import PlcState
from drivers.fitting import fit

SLOW_SYNC_S = 0.5  # the ring bridges more, but such a disk is ill or overloaded
SYNC_BYTES, SYNCS = 65536, 5  # one chunk of a recording
SOON_DAYS = 30.0
ANSWER_S = 2.0  # of broker and of programs that are asked
LATE_P99 = 0.1  # of the period: above, ticks begin noticeably late
STILL_M_S = 0.002
PLC_HOLDS_S, PLC_STOPS_S = 0.050, 0.100  # what the PLC program promises for a silent host
LOOK_S = 0.005
READING_S = 0.030  # from a change in the PLC until it can be seen here, at most
CONNECT_S = 5.0
SILENCE_S = 0.5
STOP_S = 5.0


def doctor(path: Path, seconds: float, self_test: bool, as_json: bool, out: TextIO) -> int:
    """Examine a site on this computer and print what was found; 0 unless something fails, then 1.

    With `self_test` the drives come on and the PLC must stop them when this program falls silent.

    Raises:
        ConfigurationError: the site file cannot be used.
    """
    files = load_site(path)
    findings: list[Finding] = []
    for found in _examined(files, seconds, self_test):
        findings.append(found)
        if not as_json:
            print(line(found), file=out, flush=True)
    if as_json:
        print(json.dumps([found._asdict() for found in findings]), file=out)
    return int(any(found.verdict == "fail" for found in findings))


def line(found: Finding) -> str:
    """A row of the table, with what to do about it below."""
    text = f"{found.verdict.upper():<4}  {found.name:<16} {found.found}"
    return text + (f"\n{'':23}→ {found.mend}" if found.mend else "")


def _examined(files: SiteFiles, seconds: float, self_test: bool) -> Iterable[Finding]:
    site = files.site
    yield from computer.judge(computer.read(site), site.realtime)
    yield judge_sync(_sync_times_s(Path(site.recording.folder)))
    yield judge_network(_route(split_address(site.ads.address)[0]), frozenset(os.sched_getaffinity(0)))
    yield _broker(site)
    yield from (judge_certificate(file, *_ends(Path(file))) for file in certificates(site))
    try:
        with sole_controller(site.ads):
            devices = _devices(files)
            yield from devices
            if self_test:
                yield _watchdog(files, devices)
    except ConfigurationError as held:
        mend = "end it to have the devices examined: one program at a time may talk to the PLC"
        yield Finding("PLC", "warn", f"not tried: {str(held).partition(': ')[2]}", mend)
    yield _jitter(site, seconds)


# ---------------------------------------------------------------- disk


def judge_sync(times_s: list[float] | str) -> Finding:
    """`times_s` of writing a chunk through to the disk, or why that was not possible."""
    if isinstance(times_s, str):
        return Finding("disk write", "fail", times_s, "make the folder of recordings writable for this user")
    worst_s = max(times_s)
    found = f"{SYNC_BYTES >> 10} KiB reach the disk within {1e3 * worst_s:.1f} ms, worst of {len(times_s)}"
    if worst_s > SLOW_SYNC_S:
        return Finding("disk write", "warn", found, "see what else writes there, and whether the disk is healthy")
    return Finding("disk write", "pass", found)


def _sync_times_s(folder: Path) -> list[float] | str:
    where, times_s = computer.existing(folder), list[float]()
    try:
        with tempfile.TemporaryFile(dir=where, buffering=0) as file:
            for _ in range(SYNCS):
                begin_s = time.monotonic()
                file.write(os.urandom(SYNC_BYTES))
                os.fsync(file.fileno())
                times_s.append(time.monotonic() - begin_s)
    except OSError as error:
        return f"{where}: {error.strerror}"
    return times_s


# ---------------------------------------------------------------- network


class Route(NamedTuple):
    """How packets reach the PLC."""

    problem: str = ""  # why that is not known
    interface: str = ""
    gateway: str = ""  # a router on the way
    wireless: bool = False
    carrier: bool = True
    speed_mbit_s: int = 0  # 0: not known
    interrupts: frozenset[int] = frozenset()  # CPUs that serve those of the interface


def judge_network(route: Route, control: frozenset[int]) -> Finding:
    """The way to the PLC; `control` are the CPUs of the control process."""
    if route.problem:
        return Finding("network", "fail", route.problem, "set ads.address, or the address of the interface to the PLC")
    name = route.interface
    shared = sorted(route.interrupts & control)
    if name == "lo":
        verdict, found, mend = "pass", "the PLC is on this computer", ""
    elif not route.carrier:
        verdict, found, mend = "fail", f"{name} to the PLC has no carrier", "plug the cable in"
    elif route.wireless:
        verdict, found, mend = "fail", f"the PLC is behind {name}, which is wireless", "use a cable"
    elif route.gateway:
        mend = "connect them directly, or through one switch"
        verdict, found = "warn", f"the PLC is behind the router {route.gateway} ({name})"
    elif shared and len(control) < (os.cpu_count() or 1):
        mend = "move the interrupts away (deploy/realtime)"
        verdict, found = "warn", f"CPU {','.join(map(str, shared))} serves {name} and the control process"
    else:
        speed = f", {route.speed_mbit_s} Mbit/s" if route.speed_mbit_s else ""
        verdict, found, mend = "pass", f"{name}{speed}, no router to the PLC", ""
    return Finding("network", verdict, found, mend)


def _route(host: str) -> Route:
    try:
        address = socket.gethostbyname(host)
        told = subprocess.run(  # noqa: S603  an address, no text of others
            ["ip", "-json", "route", "get", address], capture_output=True, text=True, timeout=ANSWER_S, check=False  # noqa: S607
        )  # fmt: skip
        found = cast("list[dict[str, Any]]", json.loads(told.stdout or "[]"))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Route(f"no route to {host}: {error}")
    if not found or "dev" not in found[0]:
        return Route(f"no route to {host}: {told.stderr.strip()}")
    interface = str(found[0]["dev"])
    device = Path("/sys/class/net") / interface
    numbers = [entry.name for entry in (device / "device" / "msi_irqs").glob("*")]
    served = (Path("/proc/irq") / number / "effective_affinity_list" for number in numbers)
    return Route(
        interface=interface,
        gateway=str(found[0].get("gateway", "")),
        wireless=(device / "wireless").exists(),
        carrier=computer.text(device / "carrier") != "0",
        speed_mbit_s=max(int(computer.text(device / "speed") or 0), 0),
        interrupts=frozenset(cpu for path in served for cpu in computer.listed_cpus(computer.text(path))),
    )


# ---------------------------------------------------------------- broker and certificates


def _broker(site: schema.Site) -> Finding:
    mqtt = site.mqtt
    where = f"{mqtt.host}:{mqtt.port}"
    try:
        with socket.create_connection((mqtt.host, mqtt.port), ANSWER_S) as plain:
            if mqtt.tls is None:
                return Finding("broker", "pass", f"{where} answers, without TLS")
            with credentials.tls_context(mqtt.tls).wrap_socket(plain, server_hostname=mqtt.host) as secured:
                ends_s = ssl.cert_time_to_seconds(str((secured.getpeercert() or {})["notAfter"]))
                found = judge_certificate(f"of {where}", ends_s, "")
                return found._replace(name="broker", found=f"{secured.version()}, {found.found}")
    except ConfigurationError as error:
        return Finding("broker", "fail", str(error), "see deploy/mosquitto")
    except OSError as error:
        if site.broker and site.broker.start:
            return Finding("broker", "pass", f"{where} does not answer: it is started with the run")
        mend = "start it; the machine can move without, nobody can watch it over MQTT"
        return Finding("broker", "warn", f"{where}: {in_words(error, mqtt.tls is not None, known=True)}", mend)


def certificates(site: schema.Site) -> list[str]:
    """The files of certificates that a site names."""
    tls = site.mqtt.tls
    named = [site.web.certificate, *([tls.ca, tls.certificate] if tls else [])]
    return [file for file in dict.fromkeys(named) if file]


def judge_certificate(name: str, ends_s: float, problem: str, now_s: float | None = None) -> Finding:
    """A certificate that is valid until `ends_s` (Unix time), or cannot be read."""
    if problem:
        return Finding("certificate", "fail", f"{name}: {problem}", "make a new one (deploy/mosquitto)")
    left_days = (ends_s - (time.time() if now_s is None else now_s)) / 86400.0
    found = f"certificate {name} is valid until {datetime.fromtimestamp(ends_s, UTC):%Y-%m-%d}"
    if left_days < 0.0:
        return Finding("certificate", "fail", found, "it has expired: make a new one, or set the clock")
    if left_days < SOON_DAYS:
        return Finding("certificate", "warn", f"{found}, {left_days:.0f} days from now", "make a new one in time")
    return Finding("certificate", "pass", found)


def _ends(file: Path) -> tuple[float, str]:
    """Until when a certificate is valid, s in Unix time, or why that is not known."""
    try:
        told = subprocess.run(  # noqa: S603  the file that the site names
            ["openssl", "x509", "-noout", "-enddate", "-in", str(file)],  # noqa: S607
            capture_output=True, text=True, timeout=ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return math.nan, f"openssl cannot be asked: {error}"
    if told.returncode:
        return math.nan, "not a certificate in PEM that this user may read"
    return ssl.cert_time_to_seconds(told.stdout.strip().removeprefix("notAfter=")), ""


# ---------------------------------------------------------------- devices


def _devices(files: SiteFiles) -> list[Finding]:
    told = io.StringIO()
    problems = try_devices(files, fit(files), told)
    bad = "fail" if files.site.virtual_cell is None else "warn"
    mend = "`pkm check --connect` tries them again" if bad == "fail" else "start the virtual cell: pkm plant"
    return [
        Finding(name, bad, text, mend) if name in problems else Finding(name, "pass", text)
        for name, _, text in (row.partition(": ") for row in told.getvalue().splitlines() if not row.startswith(" "))
    ]


def _watchdog(files: SiteFiles, devices: list[Finding]) -> Finding:
    if any(found.name == "PLC" and found.verdict != "pass" for found in devices):
        return Finding("watchdog", "fail", "not tried: the PLC does not answer", "mend the link first")
    site = files.site
    period_s = 1.0 / site.rate_hz
    with contextlib.closing(AdsDriver(site.ads, len(files.machine.leg), period_s)) as driver:
        driver.open()
        test = SelfTest(driver, period_s, site.control.enable_timeout_s)
        if problem := test.run():
            mend = "bring the machine to rest, acknowledge faults, and try again"
            return Finding("watchdog", "fail", f"not tried: {problem}", mend)
    return judge_watchdog(test.held_s, test.stopped_s)


def judge_watchdog(held_s: float, stopped_s: float) -> Finding:
    """How long after the last command the PLC held and stopped the axes, s; infinite: never."""
    if max(held_s - PLC_HOLDS_S, stopped_s - PLC_STOPS_S) <= READING_S:
        found = f"the PLC holds {1e3 * held_s:.0f} ms and stops {1e3 * stopped_s:.0f} ms after the last command"
        return Finding("watchdog", "pass", found)
    told = " and ".join(
        f"{what} after {1e3 * after_s:.0f} ms" if math.isfinite(after_s) else f"does not {never}"
        for what, never, after_s in (("holds", "hold", held_s), ("stops", "stop", stopped_s))
    )
    mend = "do not move the machine; compare the PLC program with deploy/twincat"
    return Finding("watchdog", "fail", f"without commands the PLC {told}, expected 50 and 100 ms", mend)


class SelfTest:
    """Drives on at rest, then silence: does the PLC notice? At the end the drives are off."""

    def __init__(self, driver: AdsDriver, period_s: float, enable_s: float) -> None:
        self.held_s = self.stopped_s = math.inf  # after the last command
        self._driver, self._period_s, self._enable_s = driver, period_s, enable_s
        self._start_s, self._seq = time.monotonic(), 0

    def run(self) -> str:
        """Returns why it could not be done, or nothing."""
        if not self._until(lambda: self._driver.is_up, CONNECT_S, lambda: None):
            return self._driver.message
        sample = self._look()
        if sample.plc_state != PlcState.OFF or sample.drives_enabled:
            return f"the PLC is in {PlcState(sample.plc_state).name}, expected OFF"
        if not np.abs(sample.length_m_s).max() < STILL_M_S:
            return "the machine moves"
        try:
            holds = self._until(lambda: self._look().plc_state == PlcState.HOLDING, self._enable_s, self._hold)
            if not holds:
                return f"the drives do not come on within {self._enable_s:g} s"
            self._be_silent()
        finally:
            self._until(lambda: self._look().plc_state == PlcState.OFF, STOP_S, self._stop)
        return ""

    def _be_silent(self) -> None:
        self._hold()
        begin_s = time.monotonic()
        while (silent_s := time.monotonic() - begin_s) < SILENCE_S and math.isinf(self.stopped_s):
            state = self._look().plc_state
            if state in (PlcState.LATE, PlcState.QUICK_STOP):
                self.held_s = min(self.held_s, silent_s)
            if state == PlcState.QUICK_STOP:
                self.stopped_s = silent_s
            self._driver.poll()
            time.sleep(LOOK_S)

    def _look(self) -> Sample:
        now_s = time.monotonic()
        return self._driver.read(round((now_s - self._start_s) / self._period_s), now_s, self._start_s)

    def _hold(self) -> None:
        self._send(AxisMode.HOLD)

    def _stop(self) -> None:
        self._send(AxisMode.STOP)

    def _send(self, mode: AxisMode) -> None:
        sample = self._look()
        self._seq += 1
        zero = np.zeros(len(sample.length_m))
        self._driver.write(Command(self._seq, mode, sample.length_m, zero, zero))

    def _until(self, reached: Callable[[], bool], seconds: float, doing: Callable[[], None]) -> bool:
        """Do something once a period until it is reached; False if not in time."""
        end_s = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > end_s:
                return False
            doing()
            time.sleep(self._period_s)
        return True


# ---------------------------------------------------------------- jitter


def judge_jitter(loop_s: Array, bare_s: Array, period_s: float) -> Finding:
    """Lateness of the loop's clock and of a bare one beside it, s, by tick."""
    p99_s, worst_s = float(np.quantile(loop_s, 0.99)), float(loop_s.max())
    bare_p99_s, bare_worst_s = float(np.quantile(bare_s, 0.99)), float(bare_s.max())
    found = (
        f"the loop's clock is {1e3 * p99_s:.2f} ms late at p99, {1e3 * worst_s:.2f} ms at worst of {len(loop_s)} ticks "
        f"(bare clock_nanosleep {1e3 * bare_p99_s:.2f}, {1e3 * bare_worst_s:.2f} ms)"
    )
    if worst_s < period_s and p99_s < LATE_P99 * period_s:
        return Finding("jitter", "pass", found)
    ours = p99_s > 2.0 * bare_p99_s and worst_s > 2.0 * bare_worst_s
    mend = "see priority above; else this process is held up" if ours else "the computer: kernel, BIOS, other programs"
    return Finding("jitter", "fail" if worst_s >= period_s else "warn", found, mend)


def _jitter(site: schema.Site, seconds: float) -> Finding:
    """Both clocks at once, half a period apart, with what the control process asks of the operating system."""
    period_s = 1.0 / site.rate_hz
    count = max(round(seconds * site.rate_hz), 2)
    bare_s: list[float] = []

    def bare() -> None:
        realtime.priority_of_thread(site.realtime.priority)
        start_s = time.monotonic() + 0.5 * period_s
        for k in range(1, count + 1):
            deadline_s = start_s + k * period_s
            time.sleep(max(deadline_s - time.monotonic(), 0.0))  # Python asks clock_nanosleep for an absolute time
            bare_s.append(time.monotonic() - deadline_s)

    async def timed() -> list[float]:
        late_s: list[float] = []
        async for tick in clock.ticks(period_s):
            late_s.append(tick.lateness_s)
            if tick.number >= count:
                break
        return late_s

    realtime.apply(site.realtime)
    beside = threading.Thread(target=bare)
    beside.start()
    loop_s = asyncio.run(timed())
    beside.join()
    return judge_jitter(np.array(loop_s), np.array(bare_s), period_s)
