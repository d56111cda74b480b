"""Requirements of a bus on another machine: a password always; without TLS, a warning."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from earl.errors import ConfigError
from earl.loopback import is_loopback


def exposure_text(url: str) -> str:
    """Describes for the log what others may see of the bus's traffic; "" if nothing.

    Raises ConfigError for a server on another machine that is reached without a password.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("redis", "rediss") or not host or is_loopback(host):
        return ""
    if not parts.password and not parse_qs(parts.query).get("password"):
        raise ConfigError(
            f"the Redis at {host} is on another machine and is given no password",
            "set one there (requirepass) and write it into the URL: redis://:PASSWORD@HOST:PORT",
        )
    if parts.scheme == "rediss":
        return ""
    return (
        f"the bus at {host} carries events, descriptors and its password without TLS: "
        "write rediss:// if the network is not yours alone"
    )
