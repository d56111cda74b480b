"""Answers calls with Ray's client, in the Python that has Ray: `python ray_side.py [ADDRESS]`.

    EARL's process ── a line of JSON: {"call": ..., arguments} ──► this process ──► the Ray cluster
                   ◄── {"answer": ...} or {"error": ...} ────────┘

It runs in another environment than EARL: only the standard library and Ray are imported. A job is a placement
group of one bundle and an actor in it, whose only work is a child process. The child gets SIGKILL when the
actor's process ends, as it does when its raylet dies; what the child had started is its warden's to end.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray
from ray.util import get_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

NAMESPACE = "earl"
# Beside the command's variables, from the raylet's: nothing else of Ray's workers is for the child.
KEPT = ("PATH", "HOME", "USER", "LANG", "CUDA_VISIBLE_DEVICES")


class JobActor:
    """Runs one command for as long as it takes, then gives its place back."""

    def __init__(self, command: list[str], variables: dict[str, str], log: str, group: str) -> None:
        import ctypes
        import signal
        import subprocess
        import threading

        context = ray.get_runtime_context()
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= variables | {
            "EARL_RAY_ADDRESS": context.gcs_address,
            "EARL_RAY_NODE_ADDRESS": ray.util.get_node_ip_address(),
        }
        prctl = ctypes.CDLL(None).prctl
        with open(log, "ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd="/",
                start_new_session=True,
                preexec_fn=lambda: prctl(1, signal.SIGKILL),  # PR_SET_PDEATHSIG
            )
        # Made here, in the thread that lives as long as the actor: the kernel watches the thread that forked.
        threading.Thread(target=self._give_back, args=(group,), daemon=True).start()

    def _give_back(self, group: str) -> None:
        self._child.wait()
        remove_placement_group(get_placement_group(group))  # ends this actor, too

    def node(self) -> str:
        return ray.util.get_node_ip_address()


def read_probe(file: str, value: str) -> bool:
    try:
        with open(file) as content:
            return content.read().strip() == value
    except OSError:
        return False


class RayCalls:
    """The calls of earl.stack.cluster.ray_manager, with values that JSON has."""

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "name": node["NodeID"][:12],
                "address": node["NodeManagerAddress"],
                "cpus": int(node["Resources"].get("CPU", 0)),
                "memory_bytes": int(node["Resources"].get("memory", 0)),
                "gpus": int(node["Resources"].get("GPU", 0)),
                "up": True,
            }
            for node in ray.nodes()
            if node["Alive"]
        ]

    def submit(
        self,
        name: str,
        command: list[str],
        variables: dict[str, str],
        log: str,
        cpus: int,
        memory_bytes: int,
        gpus: int,
        requeue: bool,
    ) -> str:
        resources = {"CPU": cpus, "memory": memory_bytes, **({"GPU": gpus} if gpus else {})}
        group = placement_group([resources], name=name, lifetime="detached")
        ray.remote(JobActor).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=cpus,
            memory=memory_bytes,
            num_gpus=gpus,
            max_restarts=-1 if requeue else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group),
        ).remote(command, variables, log, name)
        return name

    def statuses(self, jobs: list[str]) -> dict[str, dict[str, str]]:
        groups = {group["name"]: group for group in placement_group_table().values()}
        return {job: self._status(job, groups.get(job)) for job in jobs}

    def _status(self, job: str, group: dict[str, Any] | None) -> dict[str, str]:
        if group is None or group["state"] == "REMOVED":
            return {"phase": "ended", "node": "", "reason": "its placement group was removed"}
        if group["state"] in ("PENDING", "PREPARED"):
            reason = group["stats"].get("scheduling_state", "").lower().replace("_", " ")
            return {"phase": "queued", "node": "", "reason": f"pending, {reason}"}
        node = next(iter(group["bundles_to_node_id"].values()), "")[:12]
        try:
            ray.get_actor(job, NAMESPACE)
        except ValueError:
            self.cancel([job])  # the place of an actor that died: nothing runs in it
            return {"phase": "lost", "node": node, "reason": "its actor died with its node"}
        return {"phase": "running", "node": node, "reason": group["state"].lower()}

    def cancel(self, jobs: list[str]) -> None:
        for job in jobs:
            try:
                remove_placement_group(get_placement_group(job))
            except ValueError:
                continue  # it has ended

    def probe(self, file: str, value: str, nodes: list[str], timeout_s: float) -> dict[str, bool]:
        reading = ray.remote(num_cpus=0)(read_probe)
        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"][:12] in nodes]
        calls = {
            node: reading.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote(file, value)
            for node in alive
        }
        done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s)
        return {node[:12]: ray.get(call) for node, call in calls.items() if call in done}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    ray.init(
        address=sys.argv[1] if len(sys.argv) > 1 else "auto",
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level="error",
    )
    calls = RayCalls()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(calls, request.pop("call"))(**request)}
        except Exception as error:  # noqa: BLE001  Ray's errors are many: EARL shows their words
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
