"""How a process calls others: the token that it sends, and TLS, from its environment."""

from __future__ import annotations

from dataclasses import dataclass

from earl.rpc import tokens
from earl.rpc.auth import TlsFiles
from earl.rpc.token_file import Role


@dataclass(frozen=True, slots=True)
class Access:
    """token: what is sent with each call. tls: None calls in plain text."""

    token: tokens.Token = ""
    tls: TlsFiles | None = None

    @classmethod
    def of(cls, *roles: Role) -> Access:
        """How this process calls others, as the first of `roles` whose token it has.

        From EARL_TOKEN, EARL_TOKEN_FILE or EARL_TOKENS, and EARL_TLS_*. Raises ConfigError.
        """
        return cls(tokens.sent(*roles), TlsFiles.from_environment())


OPEN = Access()
