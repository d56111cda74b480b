"""A small Ray cluster of this machine's own, whose nodes are raylets: `ray_nodes.py` in Ray's environment."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from earl.config.cluster import ClusterConfig
from earl.stack.cluster.ray_manager import RayManager
from tests.support.needs import lacking
from tests.support.paths import ROOT

PYTHON = ROOT / ".venv-ray" / "bin" / "python"
NODES = ROOT / "tests" / "support" / "ray_nodes.py"


class RayCluster:
    """`nodes` raylets of one core and this memory each. Nodes of one machine share its memory and disks."""

    def __init__(self, nodes: int, memory_bytes: int) -> None:
        if not PYTHON.exists():
            lacking("there is no .venv-ray: make setup-ray")
        self._process = subprocess.Popen(
            [str(PYTHON), str(NODES), str(nodes), str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> RayCluster:
        self.address = self._answer()["address"]
        self.environment = {**os.environ, "RAY_ADDRESS": self.address}
        self.manager = RayManager(ClusterConfig(ray_python=str(PYTHON), ray_address=self.address))
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def lose(self, node: str) -> None:
        """Kills a node's raylet; another node joins."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"lose {node}\n")
        self._process.stdin.flush()
        self._answer()

    def node_of(self, job: str) -> str:
        return self.manager.statuses([job])[job].node

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the Ray cluster has ended")
