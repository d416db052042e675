"""What was identified as a new machine file, with where it comes from; never over an old one."""

import datetime
import hashlib
from pathlib import Path

from msgspec.structs import replace

from controller import __version__
from controller.errors import ConfigurationError
from controller.identification.identify import Identification, Options
from controller.identification.machine_text import machine_text
from controller.identification.summary import verdict


def write(found: Identification, machine_path: Path, options: Options, target: Path) -> None:
    """Store the machine with what was identified, and where it comes from, as a new file.

    Raises:
        ConfigurationError: if there is such a file already, or it cannot be written.
    """
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    files = ", ".join(path.name for path in (*options.recordings, *([options.friction] if options.friction else [])))
    digest = hashlib.sha256(machine_path.read_bytes()).hexdigest()[:12]
    said = f"Identified on {today} from {files} (pkm {__version__}), starting from {machine_path.name}."
    machine = replace(found.machine, source=f"{found.machine.source.rstrip()}\n{said}".strip())
    comments = [
        f"{found.machine.name}: written by `pkm identify` of pkm {__version__} on {today}.",
        f"Started from {machine_path.name} (sha256 {digest}…), with {files}.",
        *(f"Judged with {path.name}." for path in options.fresh),
        verdict(found),
        *found.notes,
        "Every key, unit, frame and sign is explained in config/README.md.",
        "",
    ]
    write_new(target, machine_text(machine, comments))


def write_new(target: Path, text: str) -> None:
    """Store a text as a new file.

    Raises:
        ConfigurationError: if there is such a file already, or it cannot be written.
    """
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{target}: there is such a file already, nothing is overwritten") from None
    except OSError as error:
        raise ConfigurationError(f"{target}: {error.strerror}") from None
