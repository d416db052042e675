"""What can be said to `pkm`: commands and their options. What each does is in `controller.__main__`."""

import argparse
import math
from pathlib import Path

from controller import __version__


def parser() -> argparse.ArgumentParser:
    """The parser of everything that can be said to `pkm`; `command` is the name of what was."""
    whole = argparse.ArgumentParser(
        prog="pkm", description="Controller for parallel robots.", epilog="Exit codes: 0 orderly, 2 configuration or "
        "input, 3 a device cannot be reached, 4 the run ended in a fault.",
    )  # fmt: skip
    whole.add_argument("--version", action="version", version=f"pkm {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str = "") -> argparse.ArgumentParser:
        # without a text the command is not listed: `pkm run` starts those
        return commands.add_parser(name, description=text, help=text) if text else commands.add_parser(name)

    run = command("run", "the service: control, gateway, and the virtual cell and broker the site asks for")
    run.add_argument("site", type=Path, metavar="SITE.toml")
    instead = run.add_mutually_exclusive_group()
    instead.add_argument("--demo", action="store_true", help="a built-in operator: ready, moves, sines until the end")
    instead.add_argument("--shadow", action="store_true", help="beside another controller: send the PLC nothing")
    instead.add_argument("--check-move", action="store_true", help="move slowly, compare load cells and tilt, end")
    instead.add_argument("--replayed", type=Path, metavar="RECORDING", help="a recording in place of the machine")
    run.add_argument("--alone", action="store_true", help="control alone: gateway, broker and cell are services, too")
    run.add_argument("--duration", type=_seconds, default=math.inf, metavar="S", help="end by itself after S seconds")
    run.add_argument("--json", action="store_true", help="print the summary as one JSON object on standard output")

    plant = command("plant", "the virtual cell alone: virtual CX5130 with the simulated machine behind it")
    plant.add_argument("site", type=Path, metavar="SITE.toml")
    plant.add_argument("--parent", type=int, help=argparse.SUPPRESS)

    fault = command("fault", "switch a fault of the running virtual cell; without a name it lists them")
    fault.add_argument("site", type=Path, metavar="SITE.toml")
    fault.add_argument("name", nargs="?", default="", metavar="FAULT")
    fault.add_argument("value", nargs="?", default="", metavar="VALUE", help="a value, or off")
    fault.add_argument("--for", type=_seconds, default=0.0, dest="for_s", metavar="S", help="end by itself")

    check = command("check", "validate a machine or site file, check the geometry, report limits")
    check.add_argument("file", type=Path, metavar="FILE.toml")
    check.add_argument("--connect", action="store_true", help="also try every device of a site")

    doctor = command("doctor", "is this computer, with its devices, fit to control: what is not, and the mend")
    doctor.add_argument("site", type=Path, metavar="SITE.toml")
    doctor.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="of watching the clock, default 10")
    doctor.add_argument("--self-test", action="store_true", help="drives on at rest, silence: does the PLC stop?")
    doctor.add_argument("--json", action="store_true", help="one JSON array on standard output")

    walk = command("commission", "from a wired machine to an accepted one, step by step, with a record")
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
        table = command(name, text)
        table.add_argument("machine", type=Path, metavar="MACHINE.toml")

    excite = command("excite", "design a motion that tells the dynamic parameters, inside all limits; CSV")
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

    identify = command("identify", "parameters from recordings, with standard errors, judged on fresh data")
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

    replay = command("replay", "run a recording through the cycle again, find the first difference")
    replay.add_argument("recording", type=Path, metavar="RECORDING")
    replay.add_argument("--to", type=_seconds, default=math.inf, dest="last_s", metavar="S", help="last t_s")
    replay.add_argument("--columns", action="store_true", help="every column that differs, and a hash of all bits")

    runs = command("runs", "recordings: list them, export rows to CSV or Parquet, make whole what a crash left")
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

    plot = command("plot", "the pictures of a recording that one looks at first")
    plot.add_argument("recording", type=Path, metavar="RECORDING")
    plot.add_argument("-o", "--output", type=Path, metavar="FILE", help="PNG, PDF or SVG; default RECORDING.png")

    request = command("request", "an operator request to the running service")
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

    user = command("user", "who may use the operator page and ask for motion")
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

    link = command("link", "the address of the operator page, with the token that logs in who can read it")
    link.add_argument("site", type=Path, metavar="SITE.toml")

    config = command("config", "what the configuration of a site was, start after start, and what changed")
    config.add_argument("site", type=Path, metavar="SITE.toml")
    what = config.add_subparsers(dest="what", required=True, metavar="history|diff")
    history = what.add_parser("history", help="what was kept at starts with another configuration, oldest first")
    history.add_argument("--json", action="store_true", help="as one JSON array")
    diff = what.add_parser("diff", help="keys that differ, as old → new; exit code 1 if anything does")
    diff.add_argument("old", nargs="?", default="", metavar="OLD", help="beginning of a hash; default: the newest kept")
    diff.add_argument("new", nargs="?", default="", metavar="NEW", help="the same; default: the files as they are now")

    backup = command("backup", "one file with all that a site is: files, users, configuration history")
    backup.add_argument("site", type=Path, metavar="SITE.toml")
    backup.add_argument("target", type=Path, metavar="FILE.tar.gz")
    backup.add_argument("--secrets", action="store_true", help="certificates, their keys and passwords, too")
    backup.add_argument("--recordings", action="store_true", help="recordings that are not being written, too")

    restore = command("restore", "bring back what `pkm backup` saved, all of it or nothing")
    restore.add_argument("source", type=Path, metavar="FILE.tar.gz")
    restore.add_argument("folder", type=Path, metavar="FOLDER", help="/, or the folder that pkm backup told")
    restore.add_argument("--over", action="store_true", help="replace files that are there")

    for name in ("gateway", "broker"):
        hidden = command(name)
        hidden.add_argument("site", type=Path)
        hidden.add_argument("--parent", type=int)
    return whole


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
