"""`pkm backup`, `pkm restore`: one file that holds what a site is, and the way back from it.

The archive is a tar file, compressed by gzip: `files/PATH` for each file, then `manifest.json`, which says what each
has to be. PATH leads from the working directory, if all files lie below it, and else from `/`. The hashes find damage,
not forgery: who can write the archive can write its manifest. Everything is written by this module itself, file by
file and by the manifest; nothing is left to what a tar file may ask for (links, devices, owners, paths).
"""

import grp
import gzip
import hashlib
import os
import pwd
import tarfile
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Literal, TextIO

import msgspec
from msgspec import Meta

from controller import __version__, schema
from controller.errors import ConfigurationError
from controller.gateway.recording.shelf import listing
from controller.recording import parts
from controller.service.sole import sole_controller
from controller.settings import SiteFiles, load_site, parse, text_of

MANIFEST, FILES = "manifest.json", "files/"
MOST_MANIFEST_BYTES = 64 * 1024 * 1024
BLOCK_BYTES = 1024 * 1024
FRESH = ".restoring"  # behind the name of a file that is not in its place yet


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file of the archive has to be."""

    name: str  # its path, with / between, from whatever it is restored to
    sha256: str
    bytes: int
    mode: Annotated[int, Meta(ge=0, le=0o777)]
    owner: str
    group: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an archive holds."""

    kind: Literal["pkm backup"]
    format: Literal[1]
    version: str  # of the program that made it
    made_unix_s: float
    base: str  # the folder that the paths lead from
    site: str  # name of the entry that is the site file
    files: list[Entry]


# ---------------------------------------------------------------- back up


def backup(path: Path, target: Path, secrets: bool, recordings: bool, out: TextIO) -> None:
    """Write the archive of a site and say what is in it, what is not, and how to get it back.

    Raises:
        ConfigurationError: the site cannot be used, a file cannot be read, or there is such an archive already; nothing
            is left behind then.
    """
    files = load_site(path)
    wanted, absent = _wanted(files, secrets, recordings)
    base = _base(wanted)
    if target.exists():
        raise ConfigurationError(f"{target}: there is such a file already, nothing is overwritten")
    fresh = target.with_name(target.name + ".new")
    try:
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            entries = _write(file, wanted, base)
            os.fsync(file.fileno())
        fresh.replace(target)
    except OSError as error:
        raise ConfigurationError(f"{error.filename or target}: {error.strerror or error}") from None
    finally:
        fresh.unlink(missing_ok=True)
    for entry in entries:
        out.write(f"{entry.bytes:>12}  {entry.name}\n")
    for what in absent:
        out.write(f"not in it: {what}\n")
    out.write(f"{target}: {len(entries)} files; to where they came from: pkm restore {target} {base}\n")


def _wanted(files: SiteFiles, secrets: bool, recordings: bool) -> tuple[list[Path], list[str]]:
    """The files of a site, its site file first, and in words what is left out."""
    site, near = files.site, files.path.parent
    named = [files.path, files.machine_path]
    named += [near / device.profile for device in site.devices.values()]
    named += [near / track.file for track in site.tracks.values() if isinstance(track, schema.CsvTrack)]
    needed = len(dict.fromkeys(named))  # without one of these it is no back-up
    folder = Path(site.recording.folder)
    # what bears the site's name in folders beside the recordings: configurations, records of commissioning
    beside = [*folder.glob(f"*/{site.name}.*"), *folder.glob(f"*/{site.name}/**/*")]
    named += sorted(file for file in beside if file.is_file())
    named += [Path(site.web.users)] if site.web.users else []
    tls = site.mqtt.tls
    secret = [site.web.certificate, site.web.key, site.mqtt.password_file]
    secret += [tls.ca, tls.certificate, tls.key] if tls else []
    named += [Path(file) for file in secret if file and secrets]
    absent: list[str] = []
    if any(secret) and not secrets:
        absent.append("certificates, keys and passwords (--secrets)")
    if recordings:
        found = listing(folder)
        for recorded in found:
            run = folder / f"{recorded.name}.mcap"
            named += [] if recorded.running else [*parts(run), run.with_name(f"{recorded.name}.note.txt")]
        absent += [f"{recorded.name}: it is being recorded" for recorded in found if recorded.running]
    elif listing(folder):
        absent.append("recordings (--recordings)")
    wanted = [Path(os.path.normpath(file.absolute())) for file in dict.fromkeys(named)]
    missing = [file for file in wanted[needed:] if not file.is_file()]
    absent += [f"{file}: no such file" for file in missing if not file.name.endswith(".note.txt")]
    return [file for file in dict.fromkeys(wanted) if file not in missing], absent


def _base(wanted: list[Path]) -> Path:
    here = Path.cwd()
    return here if all(file.is_relative_to(here) for file in wanted) else Path("/")


def _write(target: IO[bytes], wanted: list[Path], base: Path) -> list[Entry]:
    entries: list[Entry] = []
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for path in wanted:
            name = path.relative_to(base).as_posix()
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                source = _Hashed(file)
                info = tarfile.TarInfo(FILES + name)
                info.size, info.mtime, info.mode = found.st_size, found.st_mtime, 0o600
                try:
                    archive.addfile(info, source)  # type: ignore[arg-type]  it only reads
                except OSError as error:
                    raise error if error.errno else OSError(None, "it changed while it was read", str(path)) from None
            owner, group = _name(pwd.getpwuid, found.st_uid), _name(grp.getgrgid, found.st_gid)
            sha256, mode = source.sha256.hexdigest(), found.st_mode & 0o777
            entries.append(Entry(name, sha256, found.st_size, mode, owner, group))
        told = Manifest("pkm backup", 1, __version__, time.time(), str(base), entries[0].name, entries)
        data = msgspec.json.format(msgspec.json.encode(told))
        info = tarfile.TarInfo(MANIFEST)
        info.size, info.mtime, info.mode = len(data), told.made_unix_s, 0o600
        archive.addfile(info, BytesIO(data))
    return entries


class _Hashed:
    """A file that is read once, and its hash."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        return data


def _name(look_up: Callable[[int], pwd.struct_passwd] | Callable[[int], grp.struct_group], number: int) -> str:
    """The name of a user or group; empty where it has none."""
    try:
        return look_up(number)[0]
    except KeyError:
        return ""


# ---------------------------------------------------------------- restore


def restore(path: Path, folder: Path, over: bool, out: TextIO) -> None:
    """Bring the files of an archive below a folder, all or none, and say which.

    Raises:
        ConfigurationError: it is no whole backup of this controller, would leave the folder or overwrite files
            without `over`, or the site is running; nothing is written then.
    """
    manifest, site = _verified(path)
    targets = {entry.name: _target(entry, folder, path) for entry in manifest.files}
    with _at_rest([site, *_present(targets[manifest.site])]):
        present = {name: target.exists() for name, target in targets.items()}
        same = {entry.name for entry in manifest.files if present[entry.name] and _is(targets[entry.name], entry)}
        changed = [str(targets[name]) for name in targets if present[name] and name not in same]
        if changed and not over:
            raise ConfigurationError(
                f"{folder}: {', '.join(changed[:3])}{' and more' if len(changed) > 3 else ''}: found "
                f"{len(changed)} other files of these names; --over replaces them"
            )
        try:
            _place(path, {entry.name: entry for entry in manifest.files if entry.name not in same}, targets)
        except OSError as error:
            raise ConfigurationError(f"{error.filename or folder}: {error.strerror or error}") from None
    for name, target in targets.items():
        what = "the same" if name in same else "replaced" if present[name] else "restored"
        out.write(f"{what:<8}  {target}\n")
    made = datetime.fromtimestamp(manifest.made_unix_s, UTC)
    out.write(
        f"{len(targets) - len(same)} of {len(targets)} files written, as of {made:%Y-%m-%d %H:%M:%S} UTC by version "
        f"{manifest.version}; the site file is {targets[manifest.site]}\n"
    )


def _target(entry: Entry, folder: Path, archive: Path) -> Path:
    """Where a file goes; never outside of the folder, be it by its name or over a link."""
    name, target = PurePosixPath(entry.name), folder / entry.name
    proper = str(name) == entry.name and not name.is_absolute() and ".." not in name.parts and entry.name.isprintable()
    if not proper or not target.resolve().is_relative_to(folder.resolve()):
        raise ConfigurationError(f"{archive}: the path {entry.name!r} leads out of {folder}")
    if target.exists() and not target.is_file():
        raise ConfigurationError(f"{target}: found something that is no file")
    return target


@contextmanager
def _at_rest(sites: list[schema.Site]) -> Generator[None]:
    """Hold off a start of these sites meanwhile; refused while one runs."""
    with ExitStack() as held:
        for ads in dict.fromkeys(site.ads for site in sites):
            try:
                held.enter_context(sole_controller(ads))
            except ConfigurationError as error:
                raise ConfigurationError(f"the service of this site runs, stop it first: {error}") from None
        yield


def _present(path: Path) -> list[schema.Site]:
    """The site that stands there already, if it is one."""
    with suppress(ConfigurationError):
        return [parse(text_of(path), schema.Site, path)]
    return []


def _verified(path: Path) -> tuple[Manifest, schema.Site]:
    """The manifest of an archive, all of which is as the manifest says, and its site."""
    found: dict[str, tuple[str, int]] = {}
    manifest: Manifest | None = None
    for name, blocks in _members(path):
        if manifest or name in found:
            raise _foreign(path)
        if name == MANIFEST:
            manifest = _decoded(blocks, path)
            continue
        sha256, size = hashlib.sha256(), 0
        for data in blocks:
            sha256.update(data)
            size += len(data)
        found[name] = sha256.hexdigest(), size
    if manifest is None:
        raise _foreign(path)
    told = {FILES + entry.name: (entry.sha256, entry.bytes) for entry in manifest.files}
    wrong = sorted(name.removeprefix(FILES) for name in told.keys() | found if told.get(name) != found.get(name))
    if wrong or len(told) != len(manifest.files) or FILES + manifest.site not in told:
        raise ConfigurationError(
            f"{path}: not as it was made: {', '.join(wrong[:3]) or MANIFEST} differs or is missing"
        )
    (text,) = (b"".join(blocks) for name, blocks in _members(path) if name == FILES + manifest.site)
    try:
        return manifest, parse(text.decode(errors="replace"), schema.Site, Path(manifest.site))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{path}: this version does not take its site file, install version {manifest.version}: {error}"
        ) from None


def _decoded(blocks: Iterator[bytes], path: Path) -> Manifest:
    data = b""
    for block in blocks:
        data += block
        if len(data) > MOST_MANIFEST_BYTES:
            raise _foreign(path)
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise _foreign(path) from None


def _foreign(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path}: not a whole backup, of a format that this version knows")


def _members(path: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Name and content of each file of an archive, which holds nothing but `files/…` and the manifest; to its end."""
    with _readable(path), gzip.open(path) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
        for member in archive:
            source = archive.extractfile(member) if member.isreg() and not member.issparse() else None
            if source is None or not (member.name == MANIFEST or member.name.startswith(FILES)):
                raise _foreign(path)
            yield member.name, _blocks(source, path)
        while plain.read(BLOCK_BYTES):  # the checksum stands at the very end
            pass


def _blocks(source: IO[bytes], path: Path) -> Iterator[bytes]:
    with _readable(path):
        while data := source.read(BLOCK_BYTES):
            yield data


@contextmanager
def _readable(path: Path) -> Generator[None]:
    """What reading an archive may raise, as the sentence for the user."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError):
        raise _foreign(path) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None


def _is(target: Path, entry: Entry) -> bool:
    found = target.stat()
    if (found.st_size, found.st_mode & 0o777) != (entry.bytes, entry.mode):
        return False
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _place(path: Path, wanted: dict[str, Entry], targets: dict[str, Path]) -> None:
    """Write all files beside their places, then rename them; what was made until something fails goes again."""
    made: list[Path] = []
    fresh: dict[Path, Path] = {}
    try:
        for member, blocks in _members(path):
            if member == MANIFEST or (entry := wanted.get(member.removeprefix(FILES))) is None:
                continue
            target = targets[entry.name]
            _make_folder(target.parent, entry, made)
            new = fresh[target] = target.with_name(target.name + FRESH)
            new.unlink(missing_ok=True)
            sha256 = hashlib.sha256()
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                _give(new, entry)
                os.fchmod(file.fileno(), entry.mode)
                for data in blocks:
                    sha256.update(data)
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if sha256.hexdigest() != entry.sha256:  # another archive than the one that was verified
                raise _foreign(path)
        for target, new in fresh.items():
            new.replace(target)
        made.clear()
    finally:
        for new in fresh.values():
            new.unlink(missing_ok=True)
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()


def _make_folder(folder: Path, entry: Entry, made: list[Path]) -> None:
    for above in reversed([folder, *folder.parents]):
        if not above.exists():
            above.mkdir()
            _give(above, entry)
            made.append(above)


def _give(path: Path, entry: Entry) -> None:
    """To the owner it had; only root can."""
    if os.geteuid() == 0:
        with suppress(KeyError):
            os.chown(path, pwd.getpwnam(entry.owner).pw_uid, grp.getgrnam(entry.group).gr_gid)
