"""The certificate that a server shows: the one on disk when a connection begins, so that a renewal needs no
restart.

Certificate and key are two files, which change one after the other. A change is taken once the two match;
until then, and if they cannot be read, the previous certificate is shown. Open connections keep theirs.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from earl.errors import ConfigError
from earl.rpc.watched_files import WatchedFiles

log = logging.getLogger(__name__)


def pem(path: Path) -> bytes:
    """The bytes of a PEM file. Raises ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"TLS file {path} cannot be read ({error.strerror})", "check EARL_TLS_*") from error


class ServerCertificate:
    """The certificate of one server, kept up to date. Raises ConfigError for files that cannot be used."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._watched = WatchedFiles("the certificate", certificate, key)
        self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for a gRPC server, which asks for the certificate with each connection, in a thread."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            lambda: self._configuration() if self._renewed() else None,  # type: ignore[arg-type] # None: as before
        )

    def context(self) -> ssl.SSLContext:
        """A context for any other server."""

        def greeted(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
            self._renewed()
            connection.context = self._context

        first, _ = self._usable()
        first.sni_callback = greeted  # called for clients that name no server, too
        return first

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([self._pair])

    def _renewed(self) -> bool:
        """Loads files that have changed; returns whether another certificate is shown from now on."""
        renewed = self._watched.reload_if_changed(self._load)
        if renewed:
            log.info("the certificate %s changed: new connections are shown the new one", self._certificate)
        return renewed

    def _load(self) -> None:
        self._context, self._pair = self._usable()

    def _usable(self) -> tuple[ssl.SSLContext, tuple[bytes, bytes]]:
        """A context that shows what the files hold, and key and certificate as gRPC wants them."""
        pair = pem(self._key), pem(self._certificate)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            # A key that is encrypted must not ask the terminal for its password.
            context.load_cert_chain(self._certificate, self._key, password="")
        except OSError as error:
            raise ConfigError(
                f"TLS files {self._certificate} and {self._key} cannot be used: {error}",
                "check EARL_TLS_CERT and EARL_TLS_KEY",
            ) from None
        return context, pair
