"""A small Ray cluster: `.venv-ray/bin/python tests/support/ray_nodes.py NODES MEMORY_BYTES`.

Imports nothing of EARL. Each node is a raylet of this machine with one core; the GCS has a raylet of its own,
without any. The first line on standard output is the address. "lose NODE" on standard input kills the raylet
whose name begins so, and adds another; the end of standard input ends the cluster.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 80 << 20


def main() -> None:
    count, memory_bytes = map(int, sys.argv[1:])
    head = {"num_cpus": 0, "memory": 1 << 20, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)

    def add() -> Any:
        return cluster.add_node(num_cpus=1, memory=memory_bytes, object_store_memory=STORE_BYTES)

    nodes = [add() for _ in range(count)]
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        name = line.split()[1]
        node = next(node for node in nodes if node.node_id.startswith(name))
        node.kill_raylet()
        nodes.remove(node)
        nodes.append(add())
        print(json.dumps({"lost": name}), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
