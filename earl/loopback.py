"""Loopback addresses, which nothing outside this machine can reach: no TLS is needed there."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address, without port and brackets, is this machine's loopback.

    Of names only "localhost" is: any other may resolve to anything.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
