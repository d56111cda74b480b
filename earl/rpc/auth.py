"""Rules for where a server may listen and how a call is carried: addresses, TLS, and the token in its
metadata.

No bind off loopback without TLS and a token that cannot be guessed, and no token sent there without TLS:
anyone who answered would have it. tokens.py identifies the holder of a token.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grpc

from earl.errors import ConfigError, InsecureBind, InsecureCall
from earl.loopback import is_loopback
from earl.rpc.authorities import of_this_machine
from earl.rpc.renewal import ServerCertificate, pem
from earl.rpc.tokens import AcceptedTokens

AUTHORIZATION = "authorization"
SCHEME = "Bearer "
# What EARL_TLS_CA is instead of a file; a file of that name is ./system.
SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. A server needs certificate and key. authority: the certificate authorities that a client
    trusts; None: those that this machine trusts.
    """

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    @classmethod
    def from_environment(cls) -> TlsFiles | None:
        """From EARL_TLS_CERT, EARL_TLS_KEY and EARL_TLS_CA; None if none of them is set.

        EARL_TLS_CA=system: the authorities that this machine trusts.
        """
        names = ("EARL_TLS_CERT", "EARL_TLS_KEY", "EARL_TLS_CA")
        certificate, key, authority = given = [os.environ.get(name, "") for name in names]
        if not any(given):
            return None
        files = (certificate, key, "" if authority == SYSTEM else authority)
        return cls(*(Path(file) if file else None for file in files))

    def server_certificate(self) -> ServerCertificate:
        """The certificate that a server shows. Raises ConfigError if a file is missing or cannot be used."""
        if self.certificate is None or self.key is None:
            raise ConfigError("TLS without a certificate or key", "set EARL_TLS_CERT and EARL_TLS_KEY")
        return ServerCertificate(self.certificate, self.key)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a gRPC server. Raises ConfigError as `server_certificate` does."""
        return self.server_certificate().credentials()

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a gRPC client. Raises ConfigError without authorities that can be read."""
        return grpc.ssl_channel_credentials(pem(self.authority) if self.authority else of_this_machine())


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port" or "[v6]:port" into host and port. Raises ConfigError."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"address {address!r} is not host:port", 'give, for example, "127.0.0.1:0"')
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_bind(address: str, tokens: AcceptedTokens, tls: TlsFiles | None) -> None:
    """Raises InsecureBind for an address off loopback without both TLS and a strong token."""
    host, _ = split_address(address)
    if is_loopback(host):
        return
    missing = [name for name, given in (("TLS", tls), ("a token", tokens.demanded)) if not given]
    if missing:
        raise InsecureBind(
            f"bind {address} is off loopback without {' and '.join(missing)}",
            "set EARL_TLS_CERT, EARL_TLS_KEY and EARL_TOKENS (earl certs new, earl tokens new), "
            "or bind 127.0.0.1",
        )
    if tokens.weakness:
        raise InsecureBind(
            f"bind {address} is off loopback with a token that {tokens.weakness}",
            "make one with: earl tokens new",
        )


def check_call(address: str, tls: TlsFiles | None) -> None:
    """Raises InsecureCall if a token would be sent to an address off loopback without TLS."""
    host, _ = split_address(address)
    if tls is None and not is_loopback(host):
        raise InsecureCall(
            f"a token would be sent to {address} in plain text",
            "set EARL_TLS_CA=ca.pem, or EARL_TLS_CA=system for the authorities that this machine trusts",
        )


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata that a caller sends with each RPC: its token; empty without one."""
    return ((AUTHORIZATION, f"{SCHEME}{token}"),) if token else ()


def token_of(sent: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """The token in a call's metadata; None if there is none."""
    for key, value in sent:
        if key == AUTHORIZATION:
            raw = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
            scheme, token = raw[: len(SCHEME)], raw[len(SCHEME) :]
            return token if scheme.lower() == SCHEME.lower().encode() else b""
    return None
