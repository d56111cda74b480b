"""`python -m benchmarks.network.fleet_status`: a run's tickets as JSON, by the scheduler at EARL_SCHEDULER.

For a host of a rig: what is outside of its networks cannot reach the scheduler.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os

from earl.rpc.access import Access
from earl.rpc.token_file import Role
from earl.stack.codec import OperatorClient

ANSWER_S = 20.0


async def main() -> None:
    client = OperatorClient(os.environ["EARL_SCHEDULER"], Access.of(Role.OPERATOR))
    try:
        ledger = (await client.status(ANSWER_S)).ledger
    finally:
        await client.close()
    counts = {**dataclasses.asdict(ledger), "live": ledger.live, "dropped": ledger.dropped_total}
    print(json.dumps(counts))


if __name__ == "__main__":
    asyncio.run(main())
