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
from controller.errors import ConfigurationError, DeviceError, PkmError, RunError


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
    instead.add_argument("--demo", action="store_true", help="a built-in operator: ready, moves, sines until the end")
    instead.add_argument("--shadow", action="store_true", help="beside another controller: send the PLC nothing")
    instead.add_argument("--check-move", action="store_true", help="move slowly, compare load cells and tilt, end")
    instead.add_argument("--replayed", type=Path, metavar="RECORDING", help="a recording in place of the machine")
    run.add_argument("--alone", action="store_true", help="control alone: gateway, broker and cell are services, too")
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

    doctor = command("doctor", _doctor, "is this computer, with its devices, fit to control: what is not, and the mend")
    doctor.add_argument("site", type=Path, metavar="SITE.toml")
    doctor.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="of watching the clock, default 10")
    doctor.add_argument("--self-test", action="store_true", help="drives on at rest, silence: does the PLC stop?")
    doctor.add_argument("--json", action="store_true", help="one JSON array on standard output")

    walk = command("commission", _commission, "from a wired machine to an accepted one, step by step, with a record")
    walk.add_argument("site", type=Path, metavar="SITE.toml")
    walk.add_argument("--engineer", default="", metavar="NAME", help="who is responsible: stands in the record")
    walk.add_argument("--answers", type=Path, metavar="FILE.toml", help="answers beforehand, by the name of a question")
    walk.add_argument("--yes", action="store_true", help="agree to every question that yes answers, motion too")
    walk.add_argument("--again", action="append", default=[], metavar="STEP", help="a step that has passed; repeatable")
    walk.add_argument("--to", default="", dest="last", metavar="STEP", help="go no further than this step")
    walk.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="of watching the clock, default 10")
    walk.add_argument("--record", type=Path, metavar="FILE.jsonl", help="another place than beside the recordings")
    walk.add_argument("--show", action="store_true", help="the steps and what came of them; nothing is done")
    walk.add_argument("--protocol", type=Path, metavar="FILE.html", help="all has passed: accept, write the protocol")
    walk.add_argument("--user", default="", metavar="NAME", help="log in; password from PKM_PASSWORD or asked for")

    for name, text in (
        ("legs", "CSV poses on standard input to leg lengths, rates and accelerations"),
        ("pose", "CSV leg lengths on standard input to pose, iterations, residual, condition"),
        ("forces", "CSV motion on standard input to actuator and load-cell forces"),
    ):
        table = command(name, _table, text)
        table.add_argument("machine", type=Path, metavar="MACHINE.toml")

    excite = command("excite", _excite, "design a motion that tells the dynamic parameters, inside all limits; CSV")
    excite.add_argument("machine", type=Path, metavar="MACHINE.toml")
    excite.add_argument("--harmonics", type=_count, default=5, metavar="N", help="of the Fourier series, default 5")
    excite.add_argument("--period", type=_seconds, default=10.0, metavar="S", help="of the series, default 10")
    excite.add_argument("--seconds", type=_seconds, default=60.0, metavar="S", help="time to search, default 60")
    excite.add_argument("--starts", type=_count, default=None, metavar="N", help="end after N starts")
    excite.add_argument("--seed", type=int, default=0, metavar="K", help="other starts")
    excite.add_argument("--objective", choices=["condition", "logdet"], default="condition",
                        help="small condition number (default), or large log-determinant")  # fmt: skip
    excite.add_argument("--rest-to-rest", action="store_true", help="start and end at rest, so that it can be played")
    excite.add_argument("--dask", default="", metavar="ADDRESS", help="search on a Dask cluster, not on this computer")
    excite.add_argument("--friction", action="store_true", help="the friction motions of a spherical platform instead")

    identify = command("identify", _identify, "parameters from recordings, with standard errors, judged on fresh data")
    identify.add_argument("machine", type=Path, metavar="MACHINE.toml")
    identify.add_argument("recordings", nargs="+", type=Path, metavar="RECORDING", help="MCAP, or CSV")
    identify.add_argument("--fresh", action="append", default=[], type=Path, metavar="RECORDING", help="judge with it")
    identify.add_argument("--forces", choices=["cells", "pressures", "drives"], help="default: the first there is")
    identify.add_argument("--period", type=_seconds, metavar="S", help="of a periodic motion, default: looked for")
    identify.add_argument("--cutoff", type=_seconds, metavar="HZ", help="of the filter, default 30")
    identify.add_argument(
        "--friction", type=Path, metavar="RECORDING", help="of `pkm excite --friction`: friction first, from it alone"
    )
    identify.add_argument("--report", type=Path, metavar="FILE.html", help="tables and pictures in one file")
    identify.add_argument("--write", type=Path, metavar="NEW.toml", help="a new machine file with what was identified")

    replay = command("replay", _replay, "run a recording through the cycle again, find the first difference")
    replay.add_argument("recording", type=Path, metavar="RECORDING")
    replay.add_argument("--to", type=_seconds, default=math.inf, dest="last_s", metavar="S", help="last t_s")
    replay.add_argument("--columns", action="store_true", help="every column that differs, and a hash of all bits")

    runs = command("runs", _runs, "recordings: list them, export rows to CSV or Parquet, make whole what a crash left")
    what = runs.add_subparsers(dest="what", required=True, metavar="list|export|recover")
    shown = what.add_parser("list", help="the recordings of a site or folder, newest first")
    shown.add_argument("place", nargs="?", type=Path, default=Path("config/sites/simulation.toml"),
                       metavar="SITE.toml|FOLDER")  # fmt: skip
    shown.add_argument("--json", action="store_true", help="as one JSON array")
    export = what.add_parser("export", help="rows as CSV (to standard output) or Parquet")
    export.add_argument("recording", type=Path, metavar="RECORDING")
    export.add_argument("--format", choices=["csv", "parquet"], default="csv")
    export.add_argument("--channels", type=lambda text: text.split(","), metavar="A,B,…", help="default: all")
    export.add_argument("--from", type=float, default=-math.inf, dest="first_s", metavar="S", help="first t_s")
    export.add_argument("--to", type=float, default=math.inf, dest="last_s", metavar="S", help="last t_s")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="in place of standard output")
    recover = what.add_parser("recover", help="make whole what a crash left; exit code 1 if rows are missing")
    recover.add_argument("paths", nargs="+", type=Path, metavar="RECORDING|FOLDER|RING")

    plot = command("plot", _plot, "the pictures of a recording that one looks at first")
    plot.add_argument("recording", type=Path, metavar="RECORDING")
    plot.add_argument("-o", "--output", type=Path, metavar="FILE", help="PNG, PDF or SVG; default RECORDING.png")

    request = command("request", _request, "an operator request to the running service")
    request.add_argument("kind", choices=["home", "ready", "move", "sine", "stop", "off", "acknowledge", "tare",
                                         "track", "stream"])  # fmt: skip
    request.add_argument(
        "values", nargs="*", metavar="COORDINATE=VALUE", help="such as z_m=0.9 yaw_rad=0.1; of track: its name"
    )
    request.add_argument("--site", type=Path, default=Path("config/sites/simulation.toml"), metavar="SITE.toml",
                         help="default: %(default)s")  # fmt: skip
    request.add_argument("--speed-share", type=float, default=1.0, metavar="S", help="of a move: up to 1, the default")
    request.add_argument("--frequency-hz", type=float, default=0.0, metavar="F", help="of a sine: above 0, up to 5")
    request.add_argument("--user", default="", metavar="NAME", help="log in; password from PKM_PASSWORD or asked for")
    request.add_argument("--yes", action="store_true", help="at a terminal: do not ask before anything moves")
    request.add_argument("--preview", action="store_true", help="say what would come of it, ask for nothing")

    user = command("user", _user, "who may use the operator page and ask for motion")
    what = user.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in (
        ("add", "add a user, or give one another password and role"),
        ("remove", "take a user away"),
        ("list", "who there is"),
    ):
        of_user = what.add_parser(action, description=text)
        of_user.add_argument("site", type=Path, metavar="SITE.toml")
        if action != "list":
            of_user.add_argument("name", metavar="NAME")
        if action == "add":
            of_user.add_argument("--role", choices=["viewer", "operator", "engineer"], default="viewer")

    link = command("link", _link, "the address of the operator page, with the token that logs in who can read it")
    link.add_argument("site", type=Path, metavar="SITE.toml")

    config = command("config", _config, "what the configuration of a site was, start after start, and what changed")
    config.add_argument("site", type=Path, metavar="SITE.toml")
    what = config.add_subparsers(dest="what", required=True, metavar="history|diff")
    history = what.add_parser("history", help="what was kept at starts with another configuration, oldest first")
    history.add_argument("--json", action="store_true", help="as one JSON array")
    diff = what.add_parser("diff", help="keys that differ, as old → new; exit code 1 if anything does")
    diff.add_argument("old", nargs="?", default="", metavar="OLD", help="beginning of a hash; default: the newest kept")
    diff.add_argument("new", nargs="?", default="", metavar="NEW", help="the same; default: the files as they are now")

    backup = command("backup", _backup, "one file with all that a site is: files, users, configuration history")
    backup.add_argument("site", type=Path, metavar="SITE.toml")
    backup.add_argument("target", type=Path, metavar="FILE.tar.gz")
    backup.add_argument("--secrets", action="store_true", help="certificates, their keys and passwords, too")
    backup.add_argument("--recordings", action="store_true", help="recordings that are not being written, too")

    restore = command("restore", _restore, "bring back what `pkm backup` saved, all of it or nothing")
    restore.add_argument("source", type=Path, metavar="FILE.tar.gz")
    restore.add_argument("folder", type=Path, metavar="FOLDER", help="/, or the folder that pkm backup told")
    restore.add_argument("--over", action="store_true", help="replace files that are there")

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
    if not options.alone:  # the gateway is started with it, and would say the same again and again
        from controller.gateway.mqtt import credentials
        from controller.gateway.web import tls

        credentials.check(files.site.mqtt, options.site)
        tls.check(files.site.web, options.site)
    listener = _log_to_stderr("control")
    from controller.service import app

    code, failure = 0, ""
    try:
        recording = app.Recording(options.replayed, *_recording(options.replayed)) if options.replayed else None
        summary = app.run(
            files, options.demo, options.duration, options.shadow, recording, options.check_move, options.alone
        )
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
        serving = service.run(files.site, ring_path=Path(files.site.ring.path), stay=options.parent is None)
        print(json.dumps(asyncio.run(serving)))  # noqa: T201
    finally:
        listener.stop()
    return 0


def _broker(options: Any) -> int:
    from controller.gateway.mqtt.broker import command
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


def _doctor(options: Any) -> int:
    from controller.commands.doctor import doctor

    logging.basicConfig(level=logging.ERROR)  # what the drivers warn of stands in the table
    return doctor(options.site, options.seconds, options.self_test, options.json, sys.stdout)


def _commission(options: Any) -> int:
    from controller.commands.commission import command

    logging.basicConfig(level=logging.ERROR)  # what the drivers warn of stands in the steps
    asked = command.Options(
        options.site, options.engineer, options.answers, options.yes, tuple(options.again), options.last,
        options.seconds, options.record, options.user, options.show,
    )  # fmt: skip
    if options.protocol:
        return command.accept(asked, options.protocol, _password, sys.stdout)
    return command.commission(asked, _password, sys.stdout)


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


def _identify(options: Any) -> int:
    from controller.lint.geometry import require_sound
    from controller.settings import load_machine

    machine, _ = load_machine(options.machine)
    require_sound(machine, options.machine)
    for target in (options.report, options.write):
        if target and target.exists():
            raise ConfigurationError(f"{target}: there is such a file already, nothing is overwritten")
    from controller.identification import identify, new_file, summary

    asked = identify.Options(
        options.recordings, options.fresh, options.forces, options.period, options.cutoff, options.friction
    )
    found = identify.identify(machine, asked)
    summary.report(found, sys.stdout)
    if options.report and found.steps:
        from controller.identification.report import write_report

        write_report(found, asked, options.report)
    if options.write and found.passed:
        require_sound(found.machine, options.write)  # what `pkm check` would refuse is not written
        new_file.write(found, options.machine, asked, options.write)
    return 0 if found.passed else 1


def _recording(path: Path) -> tuple[dict[str, Any], Any]:
    """Meta and rows of a recording."""
    from controller.recording import read

    try:
        meta, _, rows = read(path)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such recording") from None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return meta, rows


def _runs(options: Any) -> int:
    from controller.commands import runs

    if options.what == "list":
        runs.show(options.place, options.json, sys.stdout)
    elif options.what == "export":
        span_s = (options.first_s, options.last_s)
        runs.export(options.recording, options.format, options.channels, span_s, options.output, sys.stdout)
    else:
        return runs.recover_all(options.paths, sys.stdout)
    return 0


def _plot(options: Any) -> int:
    from controller.commands.plot import plot

    print(plot(options.recording, options.output))  # noqa: T201
    return 0


def _replay(options: Any) -> int:
    from controller.commands.replay import compare

    found = compare(options.recording, options.last_s)
    if options.columns:
        print(f"{found.ticks} ticks replayed, sha256 of all that came out {found.sha256}")  # noqa: T201
        for name, (ticks, first_t_s, largest) in found.columns.items():
            print(f"{name}: {ticks} ticks differ, from t = {first_t_s:.3f} s on, by up to {largest:.3g}")  # noqa: T201
    elif found.first is None:
        print(f"{found.ticks} ticks replayed, no differing bit")  # noqa: T201
    else:
        print(  # noqa: T201
            f"tick {found.first.row} (t = {found.first.t_s:.3f} s): {found.first.channel} was recorded as "
            f"{found.first.recorded!r} and comes out as {found.first.replayed!r}"
        )
    return int(found.first is not None)


def _request(options: Any) -> int:
    import time

    from controller.commands.request import ask, local_token, login
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
    requests = Path(load_site(options.site).site.requests.path)
    token = login(requests, options.user, _password(options.user)) if options.user else local_token(requests)[1]
    question: dict[str, Any] = {
        "id": f"shell-{time.time_ns()}-{os.getpid()}", "kind": options.kind, "pose": pose, "track": track,
        "speed_share": options.speed_share, "frequency_hz": options.frequency_hz, "deadline_t": time.time() + 5.0,
    }  # fmt: skip
    if options.preview or (options.kind in MOVING and sys.stdin.isatty() and not options.yes):
        status, told = ask(requests, "/api/preview", question, token)
        print(told["text"] if status == 200 else told["error"])  # noqa: T201
        if options.preview or status != 200:
            return _exit_code(status, str(told.get("verdict")))
        if input("Go ahead? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    question["deadline_t"] = time.time() + 5.0  # whoever was asked took time to answer
    status, told = ask(requests, "/api/request", question, token)
    verdict, text, mode = (str(told.get(name, "")) for name in ("verdict", "text", "mode"))
    print(f"{verdict}: {text or told.get('error', '')}" + (f" (mode {mode})" if mode else ""))  # noqa: T201
    return _exit_code(status, verdict)


MOVING = ("home", "move", "sine", "track", "stream")


def _exit_code(status: int, verdict: str) -> int:
    return DeviceError.exit_code if status == 503 else 0 if status == 200 and verdict == "ACCEPTED" else 1


def _password(user: str) -> str:
    """From the environment, the terminal, or else the first line of standard input."""
    import getpass

    if (given := os.environ.get("PKM_PASSWORD")) is not None:
        return given
    return getpass.getpass(f"Password of {user}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")


def _user(options: Any) -> int:
    from controller.gateway.accounts import new_account, read_users, write_users
    from controller.settings import load_site

    users = load_site(options.site).site.web.users
    if not users:
        raise ConfigurationError(f"{options.site}: web.users: this key is missing, so there is no place for users")
    accounts = read_users(Path(users))
    match options.action:
        case "list":
            for name, account in sorted(accounts.items()):
                print(f"{name:<32} {account.role}")  # noqa: T201
            return 0
        case "add":
            accounts[options.name] = new_account(options.name, options.role, _password(options.name))
        case _:
            if accounts.pop(options.name, None) is None:
                raise ConfigurationError(f"{users}: found no user {options.name!r}")
    write_users(Path(users), accounts)
    return 0


def _link(options: Any) -> int:
    from controller.commands.request import local_token
    from controller.settings import load_site

    url, token = local_token(Path(load_site(options.site).site.requests.path))
    if url is None:
        raise ConfigurationError("the gateway serves no operator page: its log says why")
    print(f"{url}/#token={token}")  # noqa: T201
    return 0


def _config(options: Any) -> int:
    from controller.commands import config

    if options.what == "history":
        config.show_history(options.site, options.json, sys.stdout)
        return 0
    return int(config.show_diff(options.site, options.old, options.new, sys.stdout))


def _backup(options: Any) -> int:
    from controller.commands.backup import backup

    backup(options.site, options.target, options.secrets, options.recordings, sys.stdout)
    return 0


def _restore(options: Any) -> int:
    from controller.commands.backup import restore

    restore(options.source, options.folder, options.over, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
