"""Access to the page: a link that works once is exchanged for a cookie, which gives access to the rest.

Whoever can read the run's directory can get a link: the newest is in a file there, and a used link
is replaced at once. The cookie is signed with a key that lies there too, so that tabs stay open when the
server is started again; nothing else is remembered.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from earl.stack.run_files import replace

KEY_FILE = "dashboard.key"
KEY_BYTES = 32
# How long a browser that came in may stay.
STAY_S = 7 * 24 * 3600


class Door:
    """publish: called with every new link's token, first by the constructor. secure: TLS is used."""

    def __init__(self, key: bytes, publish: Callable[[str], None], *, secure: bool = False) -> None:
        self._key = key
        self._publish = publish
        # Cookies are shared by all ports of a host: runs on one host need names of their own.
        name = f"earl-{hashlib.sha256(key).hexdigest()[:8]}"
        self.cookie_name = f"__Host-{name}" if secure else name
        self._attributes = "; Path=/; HttpOnly; SameSite=Strict" + "; Secure" * secure
        self._token = ""
        self.renew()

    def renew(self) -> None:
        """Makes a new link; the previous one is no longer valid."""
        self._token = secrets.token_urlsafe(24)
        self._publish(self._token)

    def redeem(self, token: str) -> str | None:
        """The Set-Cookie header for a link's token, which is valid once; None for any other text."""
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        self.renew()
        expires = int(time.time()) + STAY_S
        value = f"{expires}.{secrets.token_hex(8)}"
        return f"{self.cookie_name}={value}.{self._signed(value)}; Max-Age={STAY_S}{self._attributes}"

    def admits(self, cookie: str) -> bool:
        """Returns whether the value of the cookie is one that `redeem` gave, and not too old."""
        value, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signed(value).encode()):
            return False
        expires, _, _ = value.partition(".")
        return expires.isdecimal() and int(expires) > time.time()

    def _signed(self, value: str) -> str:
        return hmac.new(self._key, value.encode(), hashlib.sha256).hexdigest()


def key_of(directory: Path) -> bytes:
    """The run's key, made on first use; one for this process alone where the directory takes no file."""
    path = directory / KEY_FILE
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
        if len(key) == KEY_BYTES:
            return key
    except (OSError, ValueError):
        pass
    made = secrets.token_bytes(KEY_BYTES)
    try:
        replace(path, made.hex())
    except OSError:
        return made
    return made
