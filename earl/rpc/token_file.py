"""The token file: who may call, by role, several tokens at once so that they can be rotated.

    [[worker]]
    token = "earl_worker_…"                    # made by `earl tokens new`
    expires = 2026-12-01T00:00:00Z             # may be left out

The order counts: of a role's tokens the first that is good is what is sent, all that are good are
accepted. So a new one is known everywhere before it is used. Nobody but the owner and, for secrets
that are mounted, a group may read the file. It is replaced, never changed in place: who mounts it
elsewhere mounts its directory, for a mount of the file alone keeps showing what was replaced.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from earl.errors import ConfigError

RANDOM_BYTES = 32
# That many bytes in base64; fewer characters cannot hold them.
LEAST_CHARACTERS = 43
LEAST_DIFFERENT = 10
MOST_CHARACTERS = 512
MOST_BYTES = 1 << 20
_ALPHABET = re.compile(r"[A-Za-z0-9_.~+/=-]+")
HOW = "make one with: earl tokens new"


class Role(StrEnum):
    """A caller's role; earl.v1.Role of proto/earl/v1/common.proto."""

    OPERATOR = "operator"
    WORKER = "worker"
    ENVIRONMENT = "environment"
    VIEWER = "viewer"


# Roles for reading: a process that changes nothing sends the token of the first of these that it has.
READERS = (Role.VIEWER, Role.OPERATOR)


@dataclass(frozen=True, slots=True)
class Entry:
    """One token. expires: in UTC; None for never."""

    role: Role
    token: str
    expires: datetime.datetime | None = None

    def good_for_s(self, now: datetime.datetime) -> float:
        """Seconds until the token expires; infinite if it never does, negative afterwards."""
        return (self.expires - now).total_seconds() if self.expires else float("inf")


def make(role: Role, expires: datetime.datetime | None = None) -> Entry:
    """A new random token."""
    return Entry(role, f"earl_{role}_{secrets.token_urlsafe(RANDOM_BYTES)}", expires)


def weakness(token: str) -> str:
    """The reason why a token is too weak to be accepted from outside this machine; "" if it is strong."""
    if not _ALPHABET.fullmatch(token):
        return "has characters that no token has"
    if not LEAST_CHARACTERS <= len(token) <= MOST_CHARACTERS:
        return f"has {len(token)} characters instead of {LEAST_CHARACTERS} to {MOST_CHARACTERS}"
    if len(set(token)) < LEAST_DIFFERENT:
        return f"is made of {len(set(token))} different characters"
    return ""


def read(path: Path) -> list[Entry]:
    """The tokens of a file, in order. Raises ConfigError; no message shows a token."""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & (stat.S_IRWXO | stat.S_IWGRP):
                raise ConfigError(f"token file {path} is open to others ({mode:04o})", f"chmod 600 {path}")
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"token file {path} cannot be read ({error.strerror})", HOW) from error
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"token file {path} is larger than {MOST_BYTES} bytes", HOW)
    try:
        table = tomllib.loads(raw.decode())
    except ValueError as error:  # its words may quote the line, and so the token
        where = re.search(r"line \d+", str(error))
        place = f" at {where.group()}" if where else ""
        raise ConfigError(
            f"token file {path} is no TOML{place}", "see docs/security.md for its form"
        ) from None
    return _entries(table, path)


def _entries(table: dict, path: Path) -> list[Entry]:
    entries: list[Entry] = []
    for name, values in table.items():
        if name not in tuple(Role) or not isinstance(values, list):
            form = f"[[{name}]]" if name in tuple(Role) else f"one of {', '.join(Role)}"
            raise ConfigError(f"token file {path} has {name!r}", f"name {form}; see docs/security.md")
        for number, value in enumerate(values, 1):
            entries.append(_entry(Role(name), value, f"{name} token {number} of {path}"))
    if len({entry.token for entry in entries}) < len(entries):
        raise ConfigError(f"token file {path} has one token twice", "it can have one role: delete one")
    if not entries:
        raise ConfigError(f"token file {path} has no token", HOW)
    return entries


def _entry(role: Role, value: object, what: str) -> Entry:
    form = isinstance(value, dict) and value.keys() <= {"token", "expires"}
    if not isinstance(value, dict) or not form or not isinstance(value.get("token"), str):
        raise ConfigError(f"{what} is not a table of token and expires", "see docs/security.md for its form")
    if weak := weakness(value["token"]):
        raise ConfigError(f"{what} {weak}", HOW)
    expires = value.get("expires")
    if expires is not None and (not isinstance(expires, datetime.datetime) or expires.tzinfo is None):
        raise ConfigError(
            f"{what} expires at {expires!r}, which names no moment", "write it as 2026-12-01T00:00:00Z"
        )
    return Entry(role, value["token"], expires)


def write(path: Path, entries: Iterable[Entry]) -> None:
    """The file, whole or not at all, at the end of links; readable by this user alone, or, where it replaces
    one, by those who could read that. Raises ConfigError."""
    lines = ["# Tokens of EARL's services (docs/security.md). Keep this file to yourself."]
    for entry in sorted(
        entries, key=lambda listed: list(Role).index(listed.role)
    ):  # stable: a role's order stays
        lines += ["", f"[[{entry.role}]]", f'token = "{entry.token}"']
        if entry.expires:
            moment = entry.expires.astimezone(datetime.UTC).replace(microsecond=0)
            lines.append(f"expires = {moment:%Y-%m-%dT%H:%M:%SZ}")
    try:
        end = Path(os.path.realpath(path))
        end.parent.mkdir(parents=True, exist_ok=True)
        scratch = end.with_name(f".{end.name}.new")
        scratch.unlink(missing_ok=True)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
                file.flush()
                _open_as(end, file.fileno())
                os.fsync(file.fileno())
            scratch.replace(end)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"token file {path} cannot be written ({error.strerror})", "name another with --file"
        ) from error


def _open_as(former: Path, descriptor: int) -> None:
    """Gives a file the owner, group and mode of the one that it replaces, if there is one; but lets in nobody
    for whom `read` would refuse it. Raises ConfigError."""
    if not former.exists():
        return
    was, now = former.stat(), os.fstat(descriptor)
    if (was.st_uid, was.st_gid) != (now.st_uid, now.st_gid):
        try:
            os.fchown(descriptor, was.st_uid, was.st_gid)
        except OSError as error:
            raise ConfigError(
                f"token file {former} cannot be replaced by this user: its owner {was.st_uid} and its group "
                f"{was.st_gid} could not read it any more ({error.strerror})",
                "do it as its owner, or as root",
            ) from error
    os.fchmod(descriptor, stat.S_IMODE(was.st_mode) & ~(stat.S_IRWXO | stat.S_IWGRP))
