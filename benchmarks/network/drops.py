"""Cuts of the links between a rig's hosts: packets that are dropped, and connections that are reset.

A host drops what arrives from another one, so that its sender learns nothing, as on a network that loses
packets; hosts that are not named still reach both.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, get_args

from benchmarks.network.rig import RigHost, RigUnavailable

# What no longer arrives: what the first host sends, what the second one sends, or either.
Way = Literal["there", "back", "both"]
WAYS: tuple[Way, ...] = get_args(Way)
PROGRAM = "iptables"
_DROP = ("-j", "DROP")
_RESET = ("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")


def require_firewall() -> None:
    """Raises RigUnavailable without the program that drops packets."""
    if shutil.which(PROGRAM) is None:
        raise RigUnavailable(f"cuts of links need {PROGRAM}", f"apt-get install {PROGRAM}")


@contextmanager
def dropped(first: RigHost, second: RigHost, way: Way = "both") -> Iterator[None]:
    """Within the block what they send each other this way is lost. Raises RigUnavailable."""
    with ExitStack() as stack:
        if way in ("there", "both"):
            stack.enter_context(_rule(second, first, _DROP))
        if way in ("back", "both"):
            stack.enter_context(_rule(first, second, _DROP))
        yield


@contextmanager
def reset(first: RigHost, second: RigHost) -> Iterator[None]:
    """Within the block every packet of a TCP connection between them resets it. Raises RigUnavailable."""
    with _rule(first, second, _RESET), _rule(second, first, _RESET):
        yield


@contextmanager
def _rule(receiver: RigHost, sender: RigHost, verdict: Sequence[str]) -> Iterator[None]:
    matched = ("INPUT", "-s", sender.address, *verdict)
    _run(receiver, ("-I", *matched))
    try:
        yield
    finally:
        _run(receiver, ("-D", *matched))


def _run(host: RigHost, arguments: Sequence[str]) -> None:
    done = host.namespaces.run((PROGRAM, "-w", *arguments))
    if done.returncode:
        raise RigUnavailable(
            f"{PROGRAM} refuses {' '.join(arguments)}: {done.stderr.strip()}",
            "use a kernel with netfilter's filter table",
        )
