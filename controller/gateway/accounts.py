"""Who may look and who may ask: the users file, passwords, sessions and their tokens.

The users file is TOML, readable by its owner alone: a table [users.NAME] with `role` and `hash` (Argon2id). It is read
again when it changes: a role taken away counts at once. Sessions live in memory only, as hashes of their tokens.
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
import math
import os
import secrets
import stat
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import argon2
import msgspec
from msgspec import Meta

from controller.errors import ConfigurationError

ROLES = ("viewer", "operator", "engineer")  # each may what the ones before it may
LOCAL = "local"  # whoever can read the local token: the service's own user
EXPIRY_S = 12 * 3600.0
IDLE_S = 3600.0  # without a request or an open page
MOST_SESSIONS = 256
MOST_OF_USER = 16
FREE_FAILURES = 3  # wrong passwords of a user from one address before the next try has to wait
FREE_OF_ADDRESS = 20  # the same of all users together
FORGOTTEN_S = 900.0  # then a wrong password no longer counts
LONGEST_WAIT_S = 60.0
MOST_FAILURES = 1024  # pairs of user and address that are remembered
HASHES_WAITING = 8  # logins that may wait for their turn
PASSWORD_LENGTHS = (8, 256)

# one lane and 19 MiB: two cores are shared with the control loop, and a login may not take them
_hasher = argon2.PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)

log = logging.getLogger("pkm.gateway.accounts")


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the users file."""

    role: Annotated[str, Meta(pattern="^(viewer|operator|engineer)\\Z")]
    hash: Annotated[str, Meta(pattern=r"^\$argon2id\$.{20,400}\Z")]


NAME = r"^[a-z0-9][a-z0-9_.-]{0,31}\Z"  # also part of a topic: no / + #


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    users: dict[Annotated[str, Meta(pattern=NAME)], Account] = {}


class Session(msgspec.Struct):
    """Who a token stands for, and until when (s, monotonic)."""

    user: str
    role: str
    ends_s: float
    used_s: float


class Refused(NamedTuple):
    """Why there is no session: an HTTP status, and in words."""

    status: int
    text: str


def may(role: str, least: str) -> bool:
    """Whether `role` is at least `least`."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(least)


def read_users(path: Path) -> dict[str, Account]:
    """The accounts of a users file, none if there is no such file.

    Raises:
        ConfigurationError: others may read it, or it is not such a file; says what.
    """
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ConfigurationError(f"{path}: others may read or write it, expected mode 0600: chmod 600 {path}")
            data = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None
    try:
        accounts = msgspec.convert(data, _File).users
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if LOCAL in accounts:
        raise ConfigurationError(f"{path}: users.{LOCAL}: found a name that is taken, expected another")
    return accounts


def write_users(path: Path, accounts: Mapping[str, Account]) -> None:
    """Replace the users file as a whole, readable by its owner alone.

    Raises:
        ConfigurationError: it cannot be written.
    """
    text = "# Users of the operator page and of requests; written by `pkm user`.\n"
    for name, account in sorted(accounts.items()):
        # names and hashes hold no character that TOML would have to escape
        text += f'\n[users."{name}"]\nrole = "{account.role}"\nhash = "{account.hash}"\n'
    fresh = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None


def new_account(name: str, role: str, password: str) -> Account:
    """An account with the hash of its password.

    Raises:
        ConfigurationError: the name or the password cannot be one.
    """
    low, high = PASSWORD_LENGTHS
    if not low <= len(password) <= high:
        raise ConfigurationError(f"password: found {len(password)} characters, expected {low} to {high}")
    try:
        msgspec.convert(name, Annotated[str, Meta(pattern=NAME)])
    except msgspec.ValidationError:
        raise ConfigurationError(
            f"name: found {name!r}, expected up to 32 of a-z, 0-9, _ . - and first a letter or digit"
        ) from None
    if name == LOCAL:
        raise ConfigurationError(f"name: {LOCAL} is taken: it stands for whoever can read the local token")
    return Account(role, _hasher.hash(password))


class Accounts:
    """Passwords and tokens in, sessions out. `now` gives seconds that only grow."""

    def __init__(self, users: Path | None, now: Callable[[], float]) -> None:
        self.local_token = secrets.token_urlsafe(32)
        self._path, self._now = users, now
        self._users: dict[str, Account] = {}
        self._seen: Any = None  # what the file looked like when it was read
        self._looked_s = -1e9
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()  # oldest first
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()  # how many, when the last
        # one thread: the allocator keeps what a hash took (19 MiB) for every thread that ever made one
        self._hashing, self._waiting = ThreadPoolExecutor(1, "passwords"), 0

    async def login(self, user: str, password: str, address: str) -> str | Refused:
        """A new token, or why not. Waits while the password is hashed in a thread."""
        now_s = self._now()
        left_s = max(self._wait_s((user, address), FREE_FAILURES), self._wait_s(("", address), FREE_OF_ADDRESS))
        if left_s > 0.0:
            return Refused(429, f"Too many wrong passwords: the next try is possible in {math.ceil(left_s)} s.")
        if self._waiting >= HASHES_WAITING:
            return Refused(429, "Too many logins at the same time: try again.")
        self._read()
        account = self._users.get(user)
        if len(password) > PASSWORD_LENGTHS[1]:
            account, password = None, ""
        # counted before the password is tried: tries at the same time count, too
        for key in ((user, address), ("", address)):
            self._failures[key] = self._failures.get(key, (0, 0.0))[0] + 1, now_s
            self._failures.move_to_end(key)
        while len(self._failures) > MOST_FAILURES:
            self._failures.popitem(last=False)
        self._waiting += 1
        try:
            known = account and account.hash
            right = await asyncio.get_running_loop().run_in_executor(self._hashing, _matches, known, password)
        finally:
            self._waiting -= 1
        if account is None or not right:
            return Refused(401, "User or password is wrong.")
        self._failures.pop((user, address), None)
        count, last_s = self._failures.get(("", address), (1, now_s))
        self._failures["", address] = count - 1, last_s
        return self._open(user, account.role)

    def login_local(self, token: str) -> str | Refused:
        """A new token for whoever knows the local one."""
        if secrets.compare_digest(_digest(token), _digest(self.local_token)):
            return self._open(LOCAL, ROLES[-1])
        return Refused(401, "This token is not valid: it changes each time the gateway starts.")

    def session(self, token: str) -> Session | None:
        """The session of a token, used now; None if there is none any more."""
        now_s = self._now()
        if secrets.compare_digest(_digest(token), _digest(self.local_token)):
            return Session(LOCAL, ROLES[-1], now_s + EXPIRY_S, now_s)
        found = self._sessions.get(_digest(token))
        if found is None:
            return None
        self._read()
        account = self._users.get(found.user)
        role = ROLES[-1] if found.user == LOCAL else account.role if account else ""
        if now_s > found.ends_s or now_s > found.used_s + IDLE_S or role != found.role:
            del self._sessions[_digest(token)]
            return None
        found.used_s = now_s
        return found

    def left_s(self, session: Session) -> float:
        """How long a session lasts if it is used."""
        return max(session.ends_s - self._now(), 0.0)

    def logout(self, token: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(token), None)

    def _wait_s(self, key: tuple[str, str], free: int) -> float:
        """How long the next try of a user from an address has to wait; the time doubles with each failure."""
        count, last_s = self._failures.get(key, (0, 0.0))
        if self._now() > last_s + FORGOTTEN_S:
            self._failures.pop(key, None)
            return 0.0
        return last_s + min(2.0 ** (count - free), LONGEST_WAIT_S) - self._now() if count >= free else 0.0

    def _open(self, user: str, role: str) -> str:
        now_s, token = self._now(), secrets.token_urlsafe(32)
        self._sessions[_digest(token)] = Session(user, role, now_s + EXPIRY_S, now_s)
        own = [key for key, session in self._sessions.items() if session.user == user]
        for key in own[:-MOST_OF_USER]:
            del self._sessions[key]
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return token

    def _read(self) -> None:
        """Read the users file if it changed, at most once a second; while it is wrong nobody of it is known."""
        now_s = self._now()
        if self._path is None or now_s < self._looked_s + 1.0:
            return
        self._looked_s, seen = now_s, None
        with contextlib.suppress(OSError):
            found = self._path.stat()
            seen = (found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode)
        if seen != self._seen:
            self._seen, self._users = seen, {}
            try:
                self._users = read_users(self._path)
            except ConfigurationError as error:
                log.error("nobody can log in with a password: %s", error)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


@functools.cache
def _nobody() -> str:
    """The hash of a password that nobody knows."""
    return _hasher.hash(secrets.token_hex(16))


def _matches(known: str | None, password: str) -> bool:
    nobody = _nobody()
    try:
        # an unknown user costs what a known one costs
        return _hasher.verify(known or nobody, password) and known is not None
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False
