"""Certificates for tests of TLS."""

import subprocess
from pathlib import Path

from earl.rpc import TlsFiles


def self_signed(directory: Path) -> TlsFiles:
    """A new certificate for 127.0.0.1 that is its own authority."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(
        ["openssl", "req", "-x509", *ec, "-nodes", "-days", "2", *subject, *files],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return TlsFiles(certificate, key, authority=certificate)
