"""A private certificate authority, for machines that trust each other and no other authority.

    DIR/ca.pem   ca.key       the authority: ca.pem goes to all callers, ca.key stays where it was made
    DIR/server.pem  server.key   what servers show, for the names by which callers know them
    DIR/NAME.pem    NAME.key     what one server shows that shares its key with no other

P-256 keys. The authority signs servers only; its key is needed again when a certificate is to be
renewed or a host is added (`renew`), or a server gets one of its own (`add`), and by nothing that runs.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from earl.errors import ConfigError

# Always among a server's names: health checks and tools on its own machine.
LOCAL = ("localhost", "127.0.0.1", "::1")
FILES = ("ca.pem", "ca.key", "server.pem", "server.key")
# The name of the certificate that all servers share.
SERVER = "server"
# Clocks of a fleet differ.
BEFORE = datetime.timedelta(minutes=5)
# The subject holds 64 characters, "EARL " among them.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,57}")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


@dataclass(frozen=True, slots=True)
class Made:
    """The written files, and when they expire (UTC). names: the host names in the server's certificate."""

    directory: Path
    names: tuple[str, ...]
    server_ends: datetime.datetime
    authority_ends: datetime.datetime

    def path(self, name: str) -> Path:
        """The path of one of the files."""
        return self.directory / name


def make(
    directory: Path, hosts: Sequence[str], *, days: int, authority_days: int, force: bool = False
) -> Made:
    """An authority and a server's certificate for `hosts` (DNS names, "*.name", IP addresses).

    With `force` servers' certificates are made again, too. Raises ConfigError for names that are none, and
    for files that are there already unless `force`.
    """
    names = [alternative(name) for name in (*hosts, *LOCAL)]
    if not force and (there := [name for name in FILES if (directory / name).exists()]):
        raise ConfigError(
            f"{directory} has {', '.join(there)} already",
            "name another directory, or replace them with --force: what trusts the old authority stops to",
        )
    others = extra_certificates(directory)
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "EARL development CA")])
    authority_ends = now + datetime.timedelta(days=authority_days)
    ca = _signed(_authority(subject, ca_key), now, authority_ends, ca_key)
    _write(directory, {"ca.key": ca_key, "ca.pem": ca})
    made = _issue(directory, SERVER, names, days)
    for other in others:
        renew(directory, name=other, days=days)
    return made


def extra_certificates(directory: Path) -> list[str]:
    """Names of the servers for which `add` made certificates, whatever authority signed them.

    They are known by their subjects: copies of others, and what other tools made, are not among them.
    """
    names = []
    for path in sorted(directory.glob("*.pem")):
        if not _NAME.fullmatch(path.stem) or path.stem in ("ca", SERVER):
            continue
        with suppress(ConfigError):
            if path.with_suffix(".key").exists() and _certificate(path).subject == _subject(path.stem):
                names.append(path.stem)
    return names


def add(directory: Path, name: str, hosts: Sequence[str] = (), *, days: int) -> Made:
    """NAME.pem and NAME.key of one server alone, for `hosts`, by the authority that is there.

    Raises ConfigError as `renew` does, and for a name that is none or that is there already.
    """
    if not _NAME.fullmatch(name) or name in ("ca", SERVER):
        raise ConfigError(f"{name!r} is no name of one server's files", "like dashboard")
    if there := [file for file in (f"{name}.pem", f"{name}.key") if (directory / file).exists()]:
        remedy = (
            "renew it: earl certs renew"
            if name in extra_certificates(directory)
            else f"remove {' and '.join(there)}"
        )
        raise ConfigError(f"{directory} has {' and '.join(there)} already", remedy)
    return _issue(directory, name, map(alternative, (*hosts, *LOCAL)), days)


def renew(directory: Path, hosts: Sequence[str] = (), *, days: int, name: str = SERVER) -> Made:
    """Another key and certificate for servers, by the same authority, so that callers trust it as before.

    For the names that the certificate has, and `hosts`. name: SERVER, or one of `extra_certificates`.

    Raises ConfigError for names that are none, files that are missing or no such, and an authority that has
    expired.
    """
    former = _certificate(directory / f"{name}.pem")
    try:
        had = former.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        had = x509.SubjectAlternativeName([])
    return _issue(directory, name, [*had, *map(alternative, hosts)], days)


def _issue(directory: Path, name: str, names: Iterable[x509.GeneralName], days: int) -> Made:
    ca = _certificate(directory / "ca.pem")
    ca_key = _authority_key(directory / "ca.key")
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    authority_ends = ca.not_valid_after_utc
    if authority_ends <= now:
        raise ConfigError(
            f"the authority in {directory} has expired",
            "make another: earl certs new --force, for all at once",
        )
    if ca_key.public_key() != ca.public_key():
        raise ConfigError(
            f"ca.key in {directory} is not of ca.pem", "put files together that were made together"
        )
    named = dict.fromkeys(names)
    server_ends = min(now + datetime.timedelta(days=days), authority_ends)
    server_key = ec.generate_private_key(ec.SECP256R1())
    server = _signed(_server(ca.subject, ca_key, server_key, named, name), now, server_ends, ca_key)
    # The key first: who reads in between gets two files that do not match, and waits for the other.
    _write(directory, {f"{name}.key": server_key, f"{name}.pem": server})
    return Made(
        directory,
        tuple(str(alternative_name.value) for alternative_name in named),
        server_ends,
        authority_ends,
    )


def alternative(name: str) -> x509.GeneralName:
    """A subject alternative name: an IP address or a DNS name. Raises ConfigError."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    labels = name.removeprefix("*.").split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ConfigError(f"--host {name!r} is no DNS name and no IP address", "like gateway.example.org")
    return x509.DNSName(name.lower())


def ends(path: Path) -> datetime.datetime:
    """Returns when the first certificate in a PEM file expires, in UTC. Raises ConfigError."""
    return _certificate(path).not_valid_after_utc


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no certificate ({error})", "make one with: earl certs new") from error


def _authority_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} is no key ({error})", "renew where the authority was made, which has its key"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is no key that earl certs made", "renew with the authority's own tools")
    return key


def _authority(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    signs = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _server(
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    names: Iterable[x509.GeneralName],
    name: str = SERVER,
) -> x509.CertificateBuilder:
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder(issuer, _subject(name), key.public_key(), x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issued_by, critical=False)
    )


def _subject(name: str) -> x509.Name:
    """The subject of the certificate that all servers share, or of one server's, by the name of its files."""
    common_name = "EARL service" if name == SERVER else f"EARL {name}"
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _signed(
    builder: x509.CertificateBuilder,
    now: datetime.datetime,
    until: datetime.datetime,
    key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    return builder.not_valid_before(now - BEFORE).not_valid_after(until).sign(key, hashes.SHA256())


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _write(directory: Path, files: Mapping[str, ec.EllipticCurvePrivateKey | x509.Certificate]) -> None:
    """Writes each file whole or not at all, keys never readable by others. Raises ConfigError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            public = isinstance(content, x509.Certificate)
            data = content.public_bytes(serialization.Encoding.PEM) if public else _key_bytes(content)
            scratch = directory / f".{name}.new"
            scratch.unlink(missing_ok=True)
            mode = 0o644 if public else 0o600
            with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
            scratch.replace(directory / name)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written ({error.strerror})", "name another") from error
