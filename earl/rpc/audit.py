"""The audit log: one JSON line for each call that a contract calls audited, for refused calls, and for
changes of the token file, in the run's audit.jsonl.

Several processes of a run may write one file. It is bounded: full, it becomes audit.1.jsonl, and a new
one begins. Refused calls are counted beyond REFUSALS a minute instead of written, so that nobody can
push the rest out by guessing. No line holds a token: its identifier is the beginning of its SHA-256.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from earl.errors import EarlError
from earl.rpc.errors import bounded
from earl.rpc.tokens import Bearer

log = logging.getLogger(__name__)

AUDIT_FILE = "audit.jsonl"
LIMIT_BYTES = 16 << 20
REFUSALS = 30
MINUTE_S = 60.0
# Others hold the lock while they write a line.
LOCK_TRIES = 10
LOCK_PAUSE_S = 0.002
# Most bytes of one value of a request, and of an error's text.
VALUE_BYTES = 200


class Audit:
    """Writes for one service. What cannot be written is logged: no call fails for it."""

    def __init__(self, path: Path, service: str, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = path
        self._service = service
        self._limit_bytes = limit_bytes
        self._began_s = 0.0
        self._refusals = 0

    def called(self, method: str, bearer: Bearer, peer: str, outcome: str, request: Any = None) -> None:
        """Writes a call and its outcome: "ok", for streams "opened" or "ended", or the name of an error."""
        about = summary(request) if isinstance(request, Message) else {}
        self.write(method, outcome=outcome, role=bearer.role, token=bearer.id, peer=peer, request=about)

    def refused(self, method: str, peer: str, error: EarlError) -> None:
        """Writes a call that was refused; beyond REFUSALS a minute they are only counted."""
        now = time.monotonic()
        if now - self._began_s >= MINUTE_S:
            missing = max(0, self._refusals - REFUSALS)
            self._began_s, self._refusals = now, 0
            if missing:
                self.write("refused calls that are not listed", count=missing)
        self._refusals += 1
        if self._refusals <= REFUSALS:
            message = bounded(error.message, VALUE_BYTES)
            self.write(method, outcome=type(error).__name__, peer=peer, message=message)

    def write(self, what: str, **fields: Any) -> None:
        """Writes one line; empty fields are left out."""
        moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        record = {"time": moment, "service": self._service, "what": what}
        record |= {name: value for name, value in fields.items() if value not in (None, "", {})}
        line = json.dumps(record, default=str).encode() + b"\n"
        try:
            self._append(line)
        except OSError as error:
            log.error("%s cannot be written (%s): %s", self._path, error.strerror, line.decode().strip())

    def _append(self, line: bytes) -> None:
        while True:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _lock(descriptor)
                if os.fstat(descriptor).st_size + len(line) <= self._limit_bytes:
                    os.write(descriptor, line)
                    return
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):  # nobody else did it
                    self._path.replace(self._path.with_name(f"{self._path.stem}.1{self._path.suffix}"))
            finally:
                os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Raises BlockingIOError where another process keeps it: a stopped one must not stop this one's loop."""
    for _ in range(LOCK_TRIES - 1):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def summary(request: Message) -> dict[str, Any]:
    """Formats a request's fields for one line: long values truncated, repeated ones counted."""
    fields: dict[str, Any] = {}
    for field, value in request.ListFields():
        if field.is_repeated:
            fields[field.name] = f"{len(value)} of them"
        elif isinstance(value, Message):
            large = value.ByteSize() > VALUE_BYTES
            fields[field.name] = f"{value.ByteSize()} bytes" if large else MessageToDict(value)
        elif isinstance(value, str | bytes):
            text = value if isinstance(value, str) else value.hex()
            fields[field.name] = bounded(text[: 2 * VALUE_BYTES], VALUE_BYTES)
        else:
            fields[field.name] = value
    return fields
