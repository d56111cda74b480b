"""Certificates for tests of TLS."""

from pathlib import Path

from earl.rpc import TlsFiles
from earl.rpc.certificates import make


def certified(directory: Path) -> TlsFiles:
    """A new certificate for this machine, signed by an authority of its own."""
    made = make(directory, ["127.0.0.1"], days=2, authority_days=2)
    return TlsFiles(made.path("server.pem"), made.path("server.key"), authority=made.path("ca.pem"))
