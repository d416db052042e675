"""The command `pkm`. Every heavy import waits until its command is called: `pkm --help` answers at once."""

import argparse
import contextlib
import json
import logging
import logging.handlers
import math
import os
import queue
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller import __version__
from controller.errors import ConfigurationError, PkmError, RunError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code and never lets a traceback out for a foreseen error."""
    code = _called(arguments)
    ads = sys.modules.get("drivers.ads")
    if ads and ads.hanging():  # the interpreter would wait for that call for ever
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
        os._exit(code)
    return code


def _called(arguments: list[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.call(options) or 0
    except PkmError as error:
        print(f"pkm {options.command}: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except BrokenPipeError:
        # whoever read our output has gone: say nothing, also not at interpreter exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pkm", description="Controller for parallel robots.", epilog="Exit codes: 0 orderly, 2 configuration or "
        "input, 3 a device cannot be reached, 4 the run ended in a fault.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"pkm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, call: Callable[[Any], int | None], text: str = "") -> argparse.ArgumentParser:
        # without a text the command is not listed: `pkm run` starts those
        sub = commands.add_parser(name, description=text, help=text) if text else commands.add_parser(name)
        sub.set_defaults(call=call)
        return sub

    run = command("run", _run, "the service: control, gateway, and the virtual cell and broker the site asks for")
    run.add_argument("site", type=Path, metavar="SITE.toml")
    instead = run.add_mutually_exclusive_group()
    instead.add_argument("--demo", action="store_true", help="ready, move and stop without an operator")
    instead.add_argument("--shadow", action="store_true", help="beside another controller: send the PLC nothing")
    instead.add_argument("--check-move", action="store_true", help="move slowly, compare load cells and tilt, end")
    instead.add_argument("--replayed", type=Path, metavar="RECORDING", help="a recording in place of the machine")
    run.add_argument("--duration", type=_seconds, default=math.inf, metavar="S", help="end by itself after S seconds")
    run.add_argument("--json", action="store_true", help="print the summary as one JSON object on standard output")

    plant = command("plant", _plant, "the virtual cell alone: virtual CX5130 with the simulated machine behind it")
    plant.add_argument("site", type=Path, metavar="SITE.toml")
    plant.add_argument("--parent", type=int, help=argparse.SUPPRESS)

    fault = command("fault", _fault, "switch a fault of the running virtual cell; without a name it lists them")
    fault.add_argument("site", type=Path, metavar="SITE.toml")
    fault.add_argument("name", nargs="?", default="", metavar="FAULT")
    fault.add_argument("value", nargs="?", default="", metavar="VALUE", help="a value, or off")
    fault.add_argument("--for", type=_seconds, default=0.0, dest="for_s", metavar="S", help="end by itself")

    check = command("check", _check, "validate a machine or site file, check the geometry, report limits")
    check.add_argument("file", type=Path, metavar="FILE.toml")
    check.add_argument("--connect", action="store_true", help="also try every device of a site")

    for name, text in (
        ("legs", "CSV poses on standard input to leg lengths, rates and accelerations"),
        ("pose", "CSV leg lengths on standard input to pose, iterations, residual, condition"),
        ("forces", "CSV motion on standard input to actuator and load-cell forces"),
    ):
        table = command(name, _table, text)
        table.add_argument("machine", type=Path, metavar="MACHINE.toml")

    excite = command("excite", _excite, "design a motion that tells the dynamic parameters, inside all limits; CSV")
    excite.add_argument("machine", type=Path, metavar="MACHINE.toml")
    excite.add_argument("--harmonics", type=_count, default=5, metavar="N", help="default: %(default)s")
    excite.add_argument("--period", type=_seconds, default=10.0, metavar="S", help="default: %(default)s")
    excite.add_argument("--seconds", type=_seconds, default=60.0, metavar="S", help="time to search, default 60")
    excite.add_argument("--starts", type=_count, default=None, metavar="N", help="end after N starts")
    excite.add_argument("--seed", type=int, default=0, metavar="K")
    excite.add_argument("--objective", choices=["condition", "logdet"], default="condition")
    excite.add_argument("--rest-to-rest", action="store_true", help="start and end at rest, so that it can be played")
    excite.add_argument("--dask", default="", metavar="ADDRESS", help="search on a Dask cluster, not on this computer")
    excite.add_argument("--friction", action="store_true", help="the friction motions of a spherical platform instead")

    replay = command("replay", _replay, "run a recording through the cycle again, find the first difference")
    replay.add_argument("recording", type=Path, metavar="RECORDING")

    request = command("request", _request, "an operator request to the running service")
    request.add_argument("kind", choices=["home", "ready", "move", "sine", "stop", "off", "acknowledge", "tare",
                                         "track", "stream"])  # fmt: skip
    request.add_argument(
        "values", nargs="*", metavar="COORDINATE=VALUE", help="such as z_m=0.9 yaw_rad=0.1; of track: its name"
    )
    request.add_argument("--site", type=Path, default=Path("config/sites/simulation.toml"), metavar="SITE.toml")
    request.add_argument("--speed-share", type=float, default=1.0)
    request.add_argument("--frequency-hz", type=float, default=0.0)

    for name, call in (("gateway", _gateway), ("broker", _broker)):
        hidden = command(name, call)
        hidden.add_argument("site", type=Path)
        hidden.add_argument("--parent", type=int)
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text}, expected a number of seconds above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected a number from 1 on")
    return value


def _log_to_stderr(name: str) -> logging.handlers.QueueListener:
    """Log lines through a queue: a terminal that does not take them must not hold up the loop."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"%(asctime)s {name:<7} %(levelname)-7s %(message)s"))
    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
    logging.basicConfig(
        format="%(message)s", level=logging.INFO, handlers=[logging.handlers.QueueHandler(lines)], force=True
    )
    listener = logging.handlers.QueueListener(lines, handler)
    listener.start()
    return listener


def _run(options: Any) -> int:
    from controller.settings import load_site

    files = load_site(options.site)
    listener = _log_to_stderr("control")
    from controller.service import app

    code, failure = 0, ""
    try:
        recording = app.Recording(options.replayed, *_recording(options.replayed)) if options.replayed else None
        summary = app.run(files, options.demo, options.duration, options.shadow, recording, options.check_move)
    except RunError as error:
        code, failure, summary = error.exit_code, str(error), error.summary
    finally:
        listener.stop()
    if summary is not None:
        _print_summary(summary, options.json)
    if failure:
        print(f"pkm run: {failure}", file=sys.stderr)  # noqa: T201
    return code


def _print_summary(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))  # noqa: T201
        return
    for key, value in summary.items():
        print(f"{key:<18} {json.dumps(value)}", file=sys.stderr)  # noqa: T201


def _plant(options: Any) -> int:
    from controller.lint.geometry import require_sound
    from controller.settings import load_site

    files = load_site(options.site)
    if files.site.virtual_cell is None:
        raise ConfigurationError(f"{options.site}: virtual_cell: this table is missing, so there is no cell to start")
    require_sound(files.machine, files.machine_path)
    _follow(options.parent)
    listener = _log_to_stderr("plant")
    import asyncio

    from controller.service.realtime import priority_of_thread
    from drivers.fitting import fit
    from drivers.virtual import cell
    from drivers.virtual.plant import Plant

    fittings = fit(files)

    # a PLC is a real-time device: its twin gets priority too, below the controller's
    priority_of_thread(max(files.site.realtime.priority - 10, 0))
    try:
        asyncio.run(cell.serve(files, fittings, Plant(files.machine, files.site.virtual_cell)))
    except OSError as error:
        raise ConfigurationError(
            f"{options.site}: ads.address: cannot listen at {files.site.ads.address}: {error.strerror}"
        ) from None
    finally:
        listener.stop()
    return 0


def _gateway(options: Any) -> int:
    from controller.settings import load_site

    files = load_site(options.site)
    _follow(options.parent)
    listener = _log_to_stderr("gateway")
    import asyncio

    from controller.gateway import service

    try:
        print(json.dumps(asyncio.run(service.run(files.site, ring_path=Path(files.site.ring.path)))))  # noqa: T201
    finally:
        listener.stop()
    return 0


def _broker(options: Any) -> int:
    from controller.gateway.broker import command
    from controller.settings import load_site

    site = load_site(options.site).site
    _follow(options.parent)
    line = command(site.mqtt.host, site.mqtt.port, Path(site.ring.path).parent)
    os.execv(line[0], line)  # noqa: S606  the broker takes this process's place, and with it the tie to its parent


def _follow(parent: int | None) -> None:
    if parent is not None:
        from controller.service.children import end_with_parent

        end_with_parent(parent)


def _fault(options: Any) -> int:
    import msgspec

    from controller.datagram import ask
    from controller.errors import DeviceError
    from controller.settings import load_site
    from drivers.virtual.faults import Reply, Switching

    cell = load_site(options.site).site.virtual_cell
    if cell is None or not cell.control:
        raise ConfigurationError(f"{options.site}: virtual_cell.control: this key is missing, so no cell listens")
    asked = Switching(options.name, options.value, options.for_s)
    try:
        reply = msgspec.json.decode(ask(Path(cell.control), msgspec.json.encode(asked), 3.0), type=Reply)
    except TimeoutError:
        raise DeviceError(f"the virtual cell at {cell.control} did not answer within 3 s") from None
    except OSError:
        raise DeviceError(f"no virtual cell listens at {cell.control}: is `pkm plant` or `pkm run` running?") from None
    if not reply.done:
        raise ConfigurationError(reply.text)
    print(reply.text)  # noqa: T201
    return 0


def _check(options: Any) -> int:
    from controller.commands.check import report

    logging.basicConfig(level=logging.ERROR)  # what the drivers warn of stands in the report
    return report(options.file, options.connect, sys.stdout)


def _table(options: Any) -> int:
    from controller.commands import tables
    from controller.lint.geometry import require_sound
    from controller.settings import load_machine

    machine, _ = load_machine(options.machine)
    require_sound(machine, options.machine)
    getattr(tables, options.command)(machine, sys.stdin, sys.stdout)
    return 0


def _excite(options: Any) -> int:
    from controller.lint.geometry import require_sound
    from controller.settings import load_machine

    machine, _ = load_machine(options.machine)
    require_sound(machine, options.machine)
    from controller.identification import excitation
    from controller.identification.excite import Options, excite, excite_friction

    if options.friction:
        excite_friction(machine, sys.stdout, sys.stderr)
        return 0
    series = excitation.Series(options.harmonics, options.period, options.rest_to_rest)
    asked = Options(series, options.objective, options.seconds, options.seed, options.starts, options.dask)
    excite(machine, asked, sys.stdout, sys.stderr)
    return 0


def _recording(path: Path) -> tuple[dict[str, Any], Any]:
    """Meta and rows of a recording."""
    from controller.gateway.recorder import read

    try:
        meta, _, rows = read(path)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such recording") from None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return meta, rows


def _replay(options: Any) -> int:
    from controller.commands.replay import replay

    meta, rows = _recording(options.recording)
    difference = replay(meta, rows, options.recording)
    if difference is None:
        print(f"{len(rows)} ticks replayed, no differing bit")  # noqa: T201
        return 0
    print(  # noqa: T201
        f"tick {difference.row} (t = {difference.t_s:.3f} s): {difference.channel} was recorded as "
        f"{difference.recorded!r} and comes out as {difference.replayed!r}"
    )
    return 1


def _request(options: Any) -> int:
    import time

    from controller.service.mailbox import Message, send
    from controller.settings import load_site

    pose: dict[str, float] = {}
    track = options.values[0] if options.kind == "track" and len(options.values) == 1 else ""
    if options.kind == "track" and not track:
        raise ConfigurationError(f"found {len(options.values)} names, expected the name of one track of the site")
    for item in () if track else options.values:
        name, _, text = item.partition("=")
        try:
            pose[name] = float(text)
        except ValueError:
            raise ConfigurationError(f"{item!r}: expected COORDINATE=VALUE with a number, such as z_m=0.9") from None
    site = load_site(options.site).site
    message = Message(
        time.time_ns() // 1000, options.kind, pose, options.speed_share, options.frequency_hz, track
    )  # fmt: skip
    answer = send(Path(site.requests.path), message)
    print(f"{answer.verdict}: {answer.text}" + (f" (mode {answer.mode})" if answer.mode else ""))  # noqa: T201
    return 0 if answer.verdict == "ACCEPTED" else 1


if __name__ == "__main__":
    sys.exit(main())
