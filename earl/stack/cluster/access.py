"""Tokens and certificates that a run on a cluster makes for itself, in `cluster/secrets`.

The services get their paths, commands that show the run read them from its directory. What the environment
names (EARL_TOKENS, EARL_TLS_CERT …) is used instead, where it names any of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from earl.errors import ConfigError
from earl.loopback import is_loopback
from earl.rpc import token_file
from earl.rpc.access import Access
from earl.rpc.auth import TlsFiles
from earl.rpc.token_file import Role
from earl.rpc.tokens import TokenFile
from earl.stack.cluster.folder import ClusterFolder
from earl.stack.cluster.manager import ClusterNode

GIVEN = ("EARL_TOKEN", "EARL_TOKEN_FILE", "EARL_TOKENS", "EARL_TLS_CERT", "EARL_TLS_KEY", "EARL_TLS_CA")
TOKENS = "tokens.toml"
DAYS = 365


def make_secrets(folder: ClusterFolder, nodes: Sequence[ClusterNode]) -> None:
    """Makes a run's tokens, and a certificate for its nodes; nothing where every node is on loopback, or the
    environment names tokens or certificates. Raises ConfigError."""
    if any(os.environ.get(name) for name in GIVEN) or all(is_loopback(node.address) for node in nodes):
        return
    try:
        from earl.rpc import certificates
    except ImportError as error:
        raise ConfigError(
            f"certificates for the nodes cannot be made: {error}",
            "install earl[stack], or set EARL_TOKENS and EARL_TLS_* to your own (docs/security.md)",
        ) from None
    folder.secrets.mkdir(mode=0o700, exist_ok=True)
    token_file.write(folder.secrets / TOKENS, [token_file.make(role) for role in Role])
    hosts = dict.fromkeys(name for node in nodes for name in (node.address, node.name))
    made = certificates.make(folder.secrets, list(hosts), days=DAYS, authority_days=DAYS, force=True)
    made.path("ca.key").unlink()  # nobody signs with it again
    for file in folder.secrets.iterdir():
        file.chmod(0o600)


def secret_variables(folder: ClusterFolder) -> dict[str, str]:
    """The variables with which services use what `make_secrets` made; none where it made nothing."""
    if not (folder.secrets / TOKENS).is_file():
        return {}
    return {
        "EARL_TOKENS": str(folder.secrets / TOKENS),
        "EARL_TLS_CERT": str(folder.secrets / "server.pem"),
        "EARL_TLS_KEY": str(folder.secrets / "server.key"),
        "EARL_TLS_CA": str(folder.secrets / "ca.pem"),
    }


def access_of(directory: Path, *roles: Role) -> Access:
    """Access to a run's services: as this process's environment says, else by the run's own secrets.

    Raises ConfigError.
    """
    secrets = ClusterFolder(directory).secrets
    if any(os.environ.get(name) for name in GIVEN) or not (secrets / TOKENS).is_file():
        return Access.of(*roles)
    send = partial(TokenFile(secrets / TOKENS).send, *roles)
    return Access(send, TlsFiles(authority=secrets / "ca.pem"))
