"""The token and TLS files with which a process calls others, from its environment."""

from __future__ import annotations

from dataclasses import dataclass

from earl.rpc import tokens
from earl.rpc.auth import TlsFiles
from earl.rpc.token_file import Role


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials of a process that calls others. token: sent with each call. tls: None: plain text."""

    token: tokens.Token = ""
    tls: TlsFiles | None = None

    @classmethod
    def of(cls, *roles: Role) -> Access:
        """Returns this process's access as the first of `roles` whose token it has.

        From EARL_TOKEN, EARL_TOKEN_FILE or EARL_TOKENS, and EARL_TLS_*. Raises ConfigError.
        """
        return cls(tokens.token_to_send(*roles), TlsFiles.from_environment())


OPEN = Access()
