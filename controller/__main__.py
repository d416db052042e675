"""The command `pkm`. Every heavy import waits until its command is called: `pkm --help` answers at once."""

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller.command_line import parser
from controller.errors import ConfigurationError, DeviceError, PkmError, RunError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code and never lets a traceback out for a foreseen error."""
    code = _called(arguments)
    ads = sys.modules.get("drivers.ads_link")
    if ads and ads.hanging():  # the interpreter would wait for that call for ever
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
        os._exit(code)
    return code


def _called(arguments: list[str] | None) -> int:
    options = parser().parse_args(arguments)
    try:
        return CALLS[options.command](options) or 0
    except PkmError as error:
        print(f"pkm {options.command}: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except BrokenPipeError:
        # whoever read our output has gone: say nothing, also not at interpreter exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


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

    from controller.service.realtime import CELL_BELOW, priority_of_thread
    from drivers.fitting import fit
    from drivers.virtual import cell
    from drivers.virtual.plant import Plant

    fittings = fit(files)

    # a PLC is a real-time device: its twin gets priority too, below the controller's
    priority_of_thread(files.site.realtime.priority - CELL_BELOW)
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


CALLS: dict[str, Callable[[Any], int | None]] = {
    "run": _run,
    "plant": _plant,
    "fault": _fault,
    "check": _check,
    "doctor": _doctor,
    "commission": _commission,
    "excite": _excite,
    "identify": _identify,
    "replay": _replay,
    "runs": _runs,
    "plot": _plot,
    "request": _request,
    "user": _user,
    "link": _link,
    "config": _config,
    "backup": _backup,
    "restore": _restore,
    "legs": _table,
    "pose": _table,
    "forces": _table,
    "gateway": _gateway,
    "broker": _broker,
}


if __name__ == "__main__":
    sys.exit(main())
