"""A reader of strided rows in its own process, for tests that kill it.

Run as `python -m tests.support.runs_reader` with JSON {"config", "secret", "arena", "region", "rows", "run",
"stride"} on stdin. It reads the rows over and over, and prints a line after each time.
"""

from __future__ import annotations

import asyncio
import json
import sys

import numpy as np

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.describe.regions import ArenaRef, RegionRef, Regions
from earl.dispatch.transport.ucx.transport import UcxTcp


def strided(
    region: RegionRef, parts: list[tuple[int, int, int, int]], into: np.ndarray, target_stride: int = 0
) -> Pieces:
    """Pieces (offset, rows, run, stride), one behind the other in `into`, or each run target_stride on."""
    offset, rows, run, stride = np.array(parts, np.int64).T
    steps = np.full(len(run), target_stride) if target_stride else run
    spans = rows * steps
    first = np.zeros(len(parts), np.int32)
    targets = np.cumsum(spans) - spans
    return Pieces(Regions.of([region]), first, offset, rows, run, stride, (into,), first, targets, steps)


async def main() -> None:
    order = json.loads(sys.stdin.readline())
    arena = ArenaRef(**order["arena"])
    region = RegionRef(arena=arena, **order["region"])
    rows, run, stride = order["rows"], order["run"], order["stride"]
    into = np.zeros(rows * run, np.uint8)
    config = DataPlaneConfig.model_validate(order["config"])
    transport = UcxTcp(config, bytes.fromhex(order["secret"]))
    while True:
        await transport.read(arena, strided(region, [(0, rows, run, stride)], into), verify=False)
        print("read", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
