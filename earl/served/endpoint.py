"""The address of a served model, and what this process shows and trusts there.

teacher.url                                 ─┐
EARL_TEACHER_TOKEN, EARL_TEACHER_TOKEN_FILE ─┼─► ServedEndpoint ─► earl.served.client
EARL_TLS_CA, the machine's authorities      ─┘
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from earl.config.frozen_stage import TeacherConfig
from earl.errors import ConfigError, InsecureCall
from earl.loopback import is_loopback
from earl.rpc.auth import TlsFiles
from earl.rpc.tokens import SecretFile, Token, current

TOKEN, TOKEN_FILE = "EARL_TEACHER_TOKEN", "EARL_TEACHER_TOKEN_FILE"


@dataclass(frozen=True, slots=True)
class ServedEndpoint:
    """A server's API. url: its base, without a slash at its end. requests: the most at once.

    request_s: of one attempt. token: sent with each request. authority: PEM file of certificate authorities
    that are trusted in addition to the machine's.
    """

    url: str
    requests: int = 16
    request_s: float = 60.0
    token: Token = field(default="", repr=False)
    authority: Path | None = None

    @classmethod
    def of(cls, teacher: TeacherConfig) -> Self:
        """The endpoint of a teacher, with this process's token.

        Raises ConfigError for a token file that cannot be read, and InsecureCall for a token that would be
        sent in plain text.
        """
        token = _token()
        url = teacher.url.rstrip("/")
        parts = urlsplit(url)
        if token and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise InsecureCall(
                f"the token of the teacher would be sent to {url} in plain text",
                f"give an https:// URL, or unset {TOKEN} and {TOKEN_FILE}",
            )
        files = TlsFiles.from_environment()
        authority = files.authority if files is not None else None
        return cls(url, teacher.requests, teacher.request_s, token, authority)

    def bearer(self) -> str:
        """The token to be sent now, "" for none. Raises ConfigError for one that no header can have."""
        token = current(self.token)
        if not (token.isascii() and token.isprintable()):
            raise ConfigError(
                "the token of the teacher has characters that no token has",
                f"set {TOKEN} or {TOKEN_FILE} again",
            )
        return token

    def tls(self) -> ssl.SSLContext:
        """The check of the server's certificate. Raises ConfigError for authorities that cannot be read."""
        context = ssl.create_default_context()
        if self.authority is not None:
            try:
                context.load_verify_locations(cafile=self.authority)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"EARL_TLS_CA = {str(self.authority)!r} cannot be used: {error}",
                    "name a PEM file of certificate authorities",
                ) from None
        return context


def _token() -> Token:
    """The token of this process's environment; "" for none. A file is read again when it changes."""
    if token := os.environ.get(TOKEN, "").strip():
        return token
    if path := os.environ.get(TOKEN_FILE):
        return SecretFile(Path(path), TOKEN_FILE)
    return ""
