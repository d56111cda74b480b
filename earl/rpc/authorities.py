"""The certificate authorities that this machine trusts, for a gRPC client.

By default gRPC uses the list of its own package, which lacks authorities that the machine's owner added.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from earl.errors import ConfigError


def of_this_machine() -> bytes:
    """The authorities' certificates in PEM, from OpenSSL's place, or SSL_CERT_FILE or SSL_CERT_DIR.

    Raises ConfigError if there are none.
    """
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if not files and paths.capath:
        files = sorted(Path(paths.capath).glob("*.[0-9]"))
    try:
        certificates = b"\n".join(file.read_bytes() for file in files)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read ({error.strerror})", _REMEDY) from error
    if not certificates:
        where = f"{paths.openssl_cafile} or {paths.openssl_capath}"
        raise ConfigError(f"this machine has no certificate authorities in {where}", _REMEDY)
    return certificates


_REMEDY = "install them (ca-certificates), or name the services' own with EARL_TLS_CA"
