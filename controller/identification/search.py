"""Many starts on any `concurrent.futures` executor: processes of this computer, or the workers of a Dask cluster."""

import os
import signal
import time
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

from controller.errors import ConfigurationError, DeviceError, PkmError
from controller.identification.excitation import ITERATIONS, Problem, optimise, random_coefficients, score
from controller.records import Array

LAST_FIT_S = 1.0  # of the budget: a start that is out of time has to be fitted to the limits yet
LOOK_S = 0.2  # how often progress is told
CONNECT_S = 5.0
# A start works on small matrices: threads of the linear algebra would only wait for each other
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


class Found(NamedTuple):
    """The best of all starts."""

    coefficients: Array  # (f, 2 H)
    score: float
    start: int  # which one it was, from 0
    starts: int  # how many there were
    cut: int  # of these, how many ran out of time: only without any is the result the same in every run


class Progress(NamedTuple):
    """How far a search is."""

    elapsed_s: float
    starts: int  # finished
    best: float  # score, infinite before the first


def search(
    problem: Problem,
    executor: Executor,
    workers: int,
    seconds: float,
    seed: int = 0,
    starts: int | None = None,
    iterations: int = ITERATIONS,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Found:
    """The best motion that starts found in the given time; `starts` limits their number,
    `iterations` that of each stage of a start.

    Start k of a seed is always the same, so more time or more workers only add starts. Workers are handed the time of
    day at which to end: their clocks should agree to a second.

    Raises:
        ConfigurationError: if no start found room for any motion.
        PkmError: if a worker died.
    """
    begin_s = time.time()
    stop_s = begin_s + seconds - LAST_FIT_S
    waiting: dict[Future[tuple[Array, float, bool]], int] = {}
    best, launched, finished, cut = Found(problem.centre, float("inf"), 0, 0, 0), 0, 0, 0
    try:
        while True:
            while len(waiting) < workers and launched != starts and (launched == 0 or time.time() < stop_s):
                waiting[executor.submit(one_start, problem, (seed, launched), stop_s, iterations)] = launched
                launched += 1
            if not waiting:
                break
            done, _ = wait(waiting, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            for future in done:
                start, (coefficients, value, stopped) = waiting.pop(future), future.result()
                finished, cut = finished + 1, cut + stopped
                if (value, start) < (best.score, best.start):
                    best = Found(coefficients, value, start, 0, 0)
            tell(Progress(time.time() - begin_s, finished, best.score))
    except BrokenExecutor:
        raise PkmError("a process that was optimising has died; is there enough memory?") from None
    finally:
        for future in waiting:
            future.cancel()
    if best.score == float("inf"):
        raise ConfigurationError("the limits leave no room for any motion about the home pose")
    return best._replace(starts=finished, cut=cut)


def one_start(problem: Problem, seed: tuple[int, int], stop_s: float, iterations: int) -> tuple[Array, float, bool]:
    """Coefficients, score, and whether time ran out, of the start with this seed; ends soon after `stop_s`."""
    found = optimise(problem, random_coefficients(problem, seed), lambda: time.time() > stop_s, iterations)
    return found, score(problem, found), time.time() > stop_s


@contextmanager
def local_processes(workers: int | None = None) -> Generator[tuple[Executor, int]]:
    """Processes of this computer, one a core, and how many there are."""
    count = workers or os.cpu_count() or 1
    for name in THREADS:
        os.environ.setdefault(name, "1")  # for the children: here the libraries are loaded already
    # spawn: a fork would share locks of threads that do not exist in the child
    context, on_interrupt = get_context("spawn"), (signal.SIGINT, signal.SIG_DFL)
    with ProcessPoolExecutor(count, context, signal.signal, on_interrupt) as pool:
        yield pool, count


@contextmanager
def dask_cluster(address: str) -> Generator[tuple[Executor, int]]:
    """Workers of a Dask cluster, which need this project installed, and how many threads they have together.

    Raises:
        ConfigurationError: if the package distributed is not installed, or the cluster has no workers.
        DeviceError: if no scheduler answers.
    """
    try:
        import distributed
    except ImportError:
        raise ConfigurationError("--dask needs the package distributed: pip install distributed") from None
    dask: Any = distributed
    try:
        client = dask.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise DeviceError(f"--dask: no scheduler answers at {address}: {error}") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise ConfigurationError(f"--dask: the cluster at {address} has no workers")
        yield client.get_executor(pure=False), threads
