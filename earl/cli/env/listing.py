"""`earl env list`: what a gateway serves now."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from earl.cli.env.arguments import AsJson, Gateway, gateway_of
from earl.cli.lib.gateway_codec import CALL_S, GatewayEnvironment, list_environments, signature
from earl.rpc.access import Access
from earl.rpc.token_file import READERS
from earl.visible import visible


def list_(gateway: Gateway = "", as_json: AsJson = False) -> None:
    """List the environments at a gateway: hosts, capacity, open and waiting sessions, quarantine, tools."""
    address = gateway_of(gateway)
    environments = asyncio.run(list_environments(address, Access.of(*READERS), CALL_S))
    if as_json:
        print(
            json.dumps(
                {"gateway": address, "environments": [asdict(environment) for environment in environments]}
            )
        )
    elif not environments:
        print(f"no host is attached to {address}")
    else:
        Console(highlight=False, soft_wrap=True).print(table(environments))


# Figures of an environment, each a column.
COUNTS = ("hosts", "capacity", "open", "queued", "quarantined")


def table(environments: list[GatewayEnvironment]) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("environment", no_wrap=True)
    for name in COUNTS:
        shown.add_column(name, justify="right")
    shown.add_column("tools")
    for environment in environments:
        counts = (getattr(environment, name) for name in COUNTS)
        tools = ", ".join(signature(tool) for tool in environment.tools)
        shown.add_row(*(Text(visible(cell)) for cell in (environment.name, *map(str, counts), tools)))
    return shown
