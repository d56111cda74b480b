"""`earl env list`: what a gateway serves now."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from earl.cli.env.arguments import AsJson, Gateway, access, gateway_of
from earl.cli.lib.gateway_codec import CALL_S, Listed, listed, signature
from earl.rpc.token_file import LOOKS
from earl.visible import visible


def list_(gateway: Gateway = "", as_json: AsJson = False) -> None:
    """Show the environments at a gateway: hosts, capacity, open and waiting sessions, quarantine, tools."""
    address = gateway_of(gateway)
    found = asyncio.run(listed(address, access(*LOOKS), CALL_S))
    if as_json:
        print(json.dumps({"gateway": address, "environments": [asdict(one) for one in found]}))
    elif not found:
        print(f"no host is attached to {address}")
    else:
        Console(highlight=False, soft_wrap=True).print(table(found))


def table(found: list[Listed]) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("environment", no_wrap=True)
    for name in ("hosts", "capacity", "open", "queued", "quarantined"):
        shown.add_column(name, justify="right")
    shown.add_column("tools")
    for one in found:
        counts = (one.hosts, one.capacity, one.open, one.queued, one.quarantined)
        tools = ", ".join(signature(tool) for tool in one.tools)
        shown.add_row(*(Text(visible(cell)) for cell in (one.name, *map(str, counts), tools)))
    return shown
