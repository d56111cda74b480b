"""What nothing outside this machine can reach: there alone tokens, events and tensors go without TLS."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Of a host's name or address, without port and brackets. A name is one only if it is "localhost": any
    other may resolve to anything, whatever it looks like."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
