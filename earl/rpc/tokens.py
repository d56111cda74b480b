"""Identifies callers by the tokens that they send; and finds the token that this process sends.

A server accepts what the file that EARL_TOKENS names lists, by role, and reads it again when it
changes. Without one, the single token of EARL_TOKEN, or what the file that EARL_TOKEN_FILE names holds
at the time, is accepted for every role; with none of them no token is required, which `auth.check_bind`
allows on loopback only. What was sent is compared as SHA-256 in constant time with every token that there is.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from earl.errors import ConfigError, Unauthenticated
from earl.rpc import token_file
from earl.rpc.token_file import Entry, Role
from earl.rpc.watched_files import WatchedFiles

log = logging.getLogger(__name__)

# What is sent with a call: a fixed token, or a function that is called for each.
Token = str | Callable[[], str]

REMEDY = "set EARL_TOKEN to a token that the service accepts"
# A token that ends sooner is only sent if there is no better one.
MARGIN_S = 60.0
_ID_CHARACTERS = 8


class Bearer(NamedTuple):
    """The holder of a token. role: None for a token of every role. id: the beginning of its SHA-256, by which
    logs name it; empty where no token is required. expires: None for never.
    """

    role: Role | None
    id: str
    digest: bytes
    expires: datetime.datetime | None = None


ANYONE = Bearer(None, "", b"")


def current(token: Token) -> str:
    """The token that is to be sent now."""
    return token if isinstance(token, str) else token()


def token_id(token: str) -> str:
    """The id by which logs and `earl tokens` name a token."""
    return hashlib.sha256(token.encode()).hexdigest()[:_ID_CHARACTERS]


class AcceptedTokens:
    """The tokens that one server accepts: here a single one for every role; "" requires none."""

    def __init__(self, token: str = "") -> None:
        self._bearers: dict[bytes, Bearer] = {}
        # Why the token is too weak off loopback; a token file accepts no weak ones.
        self.weakness = token_file.weakness(token) if token else ""
        self._listeners: list[Callable[[str], None]] = []
        if token:
            self._accept([(None, token, None)])

    def _accept(self, tokens: Iterable[tuple[Role | None, str, datetime.datetime | None]]) -> None:
        bearers = {}
        for role, token, expires in tokens:
            digest = hashlib.sha256(token.encode()).digest()
            bearers[digest] = Bearer(role, token_id(token), digest, expires)
        self._bearers = bearers

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with a sentence for every change of the accepted tokens, and every refused one."""
        self._listeners.append(listener)

    def _notify(self, words: str) -> None:
        for listener in self._listeners:
            listener(words)

    @property
    def demanded(self) -> bool:
        return bool(self._bearers)

    def identify(self, sent: bytes | None) -> Bearer:
        """The bearer of a token that was sent; None: none was sent. Raises Unauthenticated."""
        if not self.demanded:
            return ANYONE
        if sent is None:
            raise Unauthenticated("no token was sent", REMEDY)
        digest = hashlib.sha256(sent).digest()
        bearer = self._find(digest)
        if bearer is None and self.refresh():
            bearer = self._find(digest)
        if bearer is None:
            raise Unauthenticated("the token is none that is accepted here", REMEDY)
        if _expired(bearer):
            raise _expired_error(bearer)
        return bearer

    def _find(self, digest: bytes) -> Bearer | None:
        match = None
        for known, bearer in self._bearers.items():  # all of them, whichever it is
            if hmac.compare_digest(known, digest):
                match = bearer
        return match

    def refusal(self, bearer: Bearer) -> Unauthenticated | None:
        """The error that ends the streams of a token that was accepted before; None if it still is."""
        if bearer is ANYONE:
            return None
        now = self._bearers.get(bearer.digest)
        if now is None or now.role != bearer.role:
            return Unauthenticated(f"the token {bearer.id} was revoked", REMEDY)
        return _expired_error(now) if _expired(now) else None

    def refresh(self) -> bool:
        """Reads the tokens again; returns whether they have changed since the last time."""
        return False


def _expired(bearer: Bearer) -> bool:
    return bearer.expires is not None and bearer.expires <= datetime.datetime.now(datetime.UTC)


def _expired_error(bearer: Bearer) -> Unauthenticated:
    return Unauthenticated(
        f"the token {bearer.id} expired at {bearer.expires:%Y-%m-%d %H:%M:%S %Z}",
        "make another with: earl tokens rotate, and send that",
    )


class TokenFile(AcceptedTokens):
    """The tokens of a token file. A change that cannot be read is logged, and the former tokens stay."""

    def __init__(self, path: Path) -> None:
        """Reads the file. Raises ConfigError if it is malformed or others can read it."""
        super().__init__()
        self.path = path
        self._entries: list[Entry] = []
        self._watched = WatchedFiles("the token file", path)
        self._load()

    def _load(self) -> None:
        self._entries = token_file.read(self.path)
        self._accept((entry.role, entry.token, entry.expires) for entry in self._entries)

    def refresh(self) -> bool:
        if not self._watched.reload_if_changed(
            self._load, lambda error: self._notify(f"not taken: {error.message}")
        ):
            return False
        log.info("the token file changed: %d tokens", len(self._entries))
        names = (f"{entry.role} {token_id(entry.token)}" for entry in self._entries)
        self._notify(f"changed: {', '.join(names)}")
        return True

    def send(self, *roles: Role) -> str:
        """The token that this process sends: of those that are good the first in the file, of the first of
        `roles` that has one.

        Raises ConfigError if none has.
        """
        self.refresh()
        now = datetime.datetime.now(datetime.UTC)
        for role in roles:
            good = [entry for entry in self._entries if entry.role == role and entry.good_for_s(now) > 0]
            if good:
                lasting = [entry for entry in good if entry.good_for_s(now) > MARGIN_S]
                return (lasting or good)[0].token
        raise ConfigError(
            f"{self.path} has no {' or '.join(roles)} token that has not expired",
            f"earl tokens new --role {roles[0]}",
        )


class SecretFile:
    """The file that EARL_TOKEN_FILE names: a token, or during a rotation several, one a line, of which the
    last is sent. It is read again when it changes; where it then cannot be read, or is empty, that is logged,
    and what it held before stays."""

    def __init__(self, path: Path, variable: str = "EARL_TOKEN_FILE") -> None:
        """Reads the file. variable: that names it. Raises ConfigError if that fails or it is empty."""
        self._path, self._remedy = path, f"check {variable}"
        self._watched = WatchedFiles("the token file", path)
        self._load()

    def _load(self) -> None:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise ConfigError(f"token file {self._path} cannot be read", self._remedy) from error
        tokens = tuple(line.strip() for line in lines if line.strip())
        if not tokens:
            raise ConfigError(f"token file {self._path} is empty", self._remedy)
        self._tokens = tokens

    def __call__(self) -> str:
        return self.all()[-1]

    def all(self) -> tuple[str, ...]:
        """The tokens that the file holds now."""
        self._watched.reload_if_changed(self._load)
        return self._tokens


class SecretTokens(AcceptedTokens):
    """The tokens of a `SecretFile`, for every role. Weak tokens do not take the place of strong ones: the
    server may be bound where only a strong one does."""

    def __init__(self, secret: SecretFile) -> None:
        super().__init__()
        self._secret = secret
        self._tokens = secret.all()
        self.weakness = _weakness(self._tokens)
        self._accept((None, token, None) for token in self._tokens)

    def refresh(self) -> bool:
        tokens = self._secret.all()
        if tokens == self._tokens:
            return False
        self._tokens = tokens
        weakness = _weakness(tokens)
        if weakness and not self.weakness:
            log.error("the token file changed and is not taken: a token of it %s", weakness)
            self._notify(f"not taken: a token of it {weakness}")
            return False
        self.weakness = weakness
        self._accept((None, token, None) for token in tokens)
        self._notify(f"changed: {', '.join(token_id(token) for token in tokens)}")
        return True


def _weakness(tokens: Iterable[str]) -> str:
    """The weakness of the first weak token; "" if all are strong."""
    return next(filter(None, map(token_file.weakness, tokens)), "")


def tokens_to_accept() -> AcceptedTokens:
    """The tokens that a server of this process accepts, by its environment. Raises ConfigError."""
    if path := os.environ.get("EARL_TOKENS"):
        return TokenFile(Path(path))
    given = _from_environment()
    return SecretTokens(given) if isinstance(given, SecretFile) else AcceptedTokens(given)


def token_to_send(*roles: Role) -> Token:
    """The token that this process sends, of the first of `roles` that has one, by its environment; "" if none
    is set. Raises ConfigError.
    """
    if token := _from_environment():
        return token
    if path := os.environ.get("EARL_TOKENS"):
        return partial(TokenFile(Path(path)).send, *roles)
    return ""


def _from_environment() -> str | SecretFile:
    if token := os.environ.get("EARL_TOKEN", "").strip():  # a secret often ends with a line
        return token
    if path := os.environ.get("EARL_TOKEN_FILE"):
        return SecretFile(Path(path))
    return ""
