"""Is this computer fit to control a machine: what can be told at once, without a device and without waiting.

Reading facts and judging them are apart: `read` asks the operating system, `judge` is pure.
"""

import ctypes
import os
import resource
import shutil
import threading
from pathlib import Path
from typing import Literal, NamedTuple

from controller import schema
from controller.errors import DeviceError
from controller.records import channels
from controller.service.realtime import Obtained, priority_of_thread

GOOD_CLOCKS = ("tsc", "arch_sys_counter")  # read in some 20 ns without leaving the process
GUEST_CLOCKS = ("kvm-clock", "xen", "hyperv_clocksource_tsc_page", "hyperv_clocksource_msr")
SLOW_IDLE_US = 100  # a hundredth of a tick to wake up
LEAST_DISK_H, ENOUGH_DISK_H = 1.0, 24.0
_ADJTIMEX_BYTES, _TIME_ERROR = 256, 5  # more than struct timex; the clock is not synchronised


class Finding(NamedTuple):
    """One condition of a good control PC."""

    name: str
    verdict: Literal["pass", "warn", "fail"]
    found: str
    mend: str = ""  # what to do about it


class Facts(NamedTuple):
    """What the operating system says of itself and grants this process."""

    kernel: str  # release and version
    preempt_rt: bool
    priority: Obtained
    memory_bytes: int | None  # that may be locked; None: all
    clock_source: str
    synchronised: bool  # the wall clock
    governors: frozenset[str]  # of CPU frequency; none: the frequency is fixed or not ours to set
    idle_us: int  # the longest wake-up of an idle state that is not disabled
    isolated: frozenset[int]  # CPUs that the scheduler leaves alone
    allowed: frozenset[int]  # CPUs this process may run on
    disk_bytes: int  # free where recordings go
    recorded_bytes_h: float  # what an hour of recording takes, uncompressed


def require(site: schema.Site) -> None:
    """Refuse a computer on which a condition fails.

    Raises:
        DeviceError: names them, with what to do.
    """
    failed = [found for found in judge(read(site), site.realtime) if found.verdict == "fail"]
    if failed:
        reasons = "; ".join(f"{found.name}: {found.found} ({found.mend})" for found in failed)
        names = ", ".join(f'"{found.name}"' for found in failed)
        raise DeviceError(
            f"this computer is not fit to move a machine: {reasons}. `pkm doctor` tells more; realtime.accept = "
            f"[{names}] in the site file runs all the same"
        )


def judge(facts: Facts, asked: schema.RealTime) -> list[Finding]:
    """The verdict on each condition; a fail that the site accepts is a warning. `schema.Condition` may fail."""
    found = [
        _kernel(facts),
        _priority(facts.priority),
        _memory(facts.memory_bytes, asked.lock_memory),
        _clock(facts.clock_source),
        _disk(facts.disk_bytes, facts.recorded_bytes_h),
        _cpus(facts.isolated, facts.allowed),
        _governor(facts.governors),
        _idle(facts.idle_us),
        _synchronised(facts.synchronised),
    ]
    return [
        one._replace(verdict="warn", found=f"{one.found}; the site accepts it")
        if one.verdict == "fail" and one.name in asked.accept
        else one
        for one in found
    ]


def _kernel(facts: Facts) -> Finding:
    if facts.preempt_rt:
        return Finding("kernel", "pass", f"{facts.kernel} with PREEMPT_RT")
    return Finding("kernel", "fail", f"{facts.kernel} has no PREEMPT_RT", "install linux-image-rt-amd64 and boot it")


def _priority(obtained: Obtained) -> Finding:
    if obtained.granted:
        return Finding("priority", "pass", f"{obtained.wish} is granted")
    if not obtained.asked:
        return Finding("priority", "warn", obtained.detail, "set realtime.priority to 50")
    mend = "set LimitRTPRIO in the unit, or an rtprio limit for a shell"
    return Finding("priority", "fail", f"{obtained.wish} is refused", mend)


def _memory(most_bytes: int | None, asked: bool) -> Finding:
    if not asked:
        return Finding("memory", "warn", "is not locked (realtime.lock_memory = false)", "set it to true")
    if most_bytes is None:
        return Finding("memory", "pass", "all of it may be locked")
    mend = "set LimitMEMLOCK=infinity in the unit, or a memlock limit for a shell"
    return Finding("memory", "fail", f"{most_bytes} bytes may be locked, expected all", mend)


def _clock(source: str) -> Finding:
    if source in GOOD_CLOCKS:
        return Finding("clock", "pass", f"clock source {source}")
    if source in GUEST_CLOCKS:
        return Finding("clock", "warn", f"clock source {source}: a virtual machine", "run on the bare computer")
    mend = "the kernel log says why it does not trust the TSC; update the BIOS"
    return Finding("clock", "fail", f"clock source {source or 'unknown'}: slow to read", mend)


def _disk(free_bytes: int, recorded_bytes_h: float) -> Finding:
    left_h = free_bytes / recorded_bytes_h
    found = f"{free_bytes / 1e9:.1f} GB free, {left_h:.0f} h of recording at {recorded_bytes_h / 1e9:.1f} GB/h"
    verdict = "fail" if left_h < LEAST_DISK_H else "warn" if left_h < ENOUGH_DISK_H else "pass"
    return Finding("disk", verdict, found, "" if verdict == "pass" else "move recordings away, or name a larger disk")


def _cpus(isolated: frozenset[int], allowed: frozenset[int]) -> Finding:
    if not isolated:
        return Finding("cpu", "warn", "no CPU is kept free of other work", "boot with isolcpus (deploy/realtime)")
    if not allowed <= isolated:
        found = f"CPUs {_listed(isolated)} are kept free, this process may run on {_listed(allowed)}"
        return Finding("cpu", "warn", found, f"set CPUAffinity={_listed(isolated)} in the unit")
    return Finding("cpu", "pass", f"runs on CPUs {_listed(allowed)}, which are kept free of other work")


def _governor(governors: frozenset[str]) -> Finding:
    if not governors:
        return Finding("governor", "pass", "the CPU frequency is not changed here")
    found = f"CPU frequency governor {' '.join(sorted(governors))}"
    if governors == frozenset({"performance"}):
        return Finding("governor", "pass", found)
    return Finding("governor", "warn", found, "set all to performance (deploy/realtime)")


def _idle(longest_us: int) -> Finding:
    found = f"idle CPUs wake up within {longest_us} us"
    if longest_us <= SLOW_IDLE_US:
        return Finding("idle", "pass", found)
    return Finding("idle", "warn", found, "boot with intel_idle.max_cstate=1, or switch C-states off in the BIOS")


def _synchronised(yes: bool) -> Finding:
    if yes:
        return Finding("time", "pass", "the wall clock is synchronised")
    return Finding("time", "warn", "the wall clock is not synchronised", "install chrony: recordings tell the time")


def _listed(cpus: frozenset[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


# ---------------------------------------------------------------- facts


def read(site: schema.Site) -> Facts:
    """Ask the operating system; changes nothing."""
    names, cpus = os.uname(), Path("/sys/devices/system/cpu")
    columns = len(channels(6, list(site.sensors), site.stream is not None))
    return Facts(
        kernel=f"Linux {names.release}",
        preempt_rt="PREEMPT_RT" in names.version or text(Path("/sys/kernel/realtime")) == "1",
        priority=_priority_elsewhere(site.realtime.priority),
        memory_bytes=_lockable_bytes(),
        clock_source=text(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        synchronised=_clock_state() != _TIME_ERROR,
        governors=frozenset(map(text, cpus.glob("cpu[0-9]*/cpufreq/scaling_governor"))),
        idle_us=max(map(_idle_us, cpus.glob("cpu[0-9]*/cpuidle/state*")), default=0),
        isolated=listed_cpus(text(cpus / "isolated")),
        allowed=frozenset(os.sched_getaffinity(0)),
        disk_bytes=shutil.disk_usage(existing(Path(site.recording.folder))).free,
        recorded_bytes_h=columns * 8 * site.rate_hz * 3600.0,
    )


def listed_cpus(text: str) -> frozenset[int]:
    """CPUs of a list such as `0,2-3`, as the kernel writes them."""
    ends = [part.partition("-") for part in text.split(",") if part.strip()]
    return frozenset(k for first, _, last in ends for k in range(int(first), int(last or first) + 1))


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())


def text(path: Path) -> str:
    """What a file of /proc or /sys says; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _priority_elsewhere(priority: int) -> Obtained:
    """Whether a thread gets it, tried by one that ends at once."""
    found: list[Obtained] = []
    thread = threading.Thread(target=lambda: found.append(priority_of_thread(priority)))
    thread.start()
    thread.join()
    return found[0]


def _lockable_bytes() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft


def _idle_us(state: Path) -> int:
    if text(state / "disable") == "1":
        return 0
    return int(text(state / "latency") or 0)


def _clock_state() -> int:
    return ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_ADJTIMEX_BYTES))
