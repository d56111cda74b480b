"""Nodes, Jobs and Pods of Kubernetes in the words of a cluster's manager. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.cluster.kubernetes.objects import COMPONENT, HEAD
from earl.stack.cluster.manager import ClusterNode, JobStatus
from earl.stack.cluster.sizes import gpus_of_nodes
from earl.stack.placement import demands

# Stands for nodes that this user may not list, and for those of a dry run.
ANY_NODE = ClusterNode("any node", "of the cluster", sys.maxsize, sys.maxsize, sys.maxsize, up=True)
# A container that waits for one of these will not begin by itself.
STUCK = {
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
}
_FACTORS = {
    "": 1.0,
    "m": 1e-3,
    **{letter: 1e3**power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": float(1 << 10 * power) for power, letter in enumerate("KMGTPE", 1)},
}


def quantity(text: str) -> float:
    """A quantity of Kubernetes as a number.

    >>> quantity("1500m"), quantity("2Ki")
    (1.5, 2048.0)
    """
    suffix = text.lstrip("0123456789.+-")
    return float(text.removesuffix(suffix)) * _FACTORS[suffix] if suffix in _FACTORS else float(text)


def nodes_of(listed: Mapping[str, Any], gpu: str) -> list[ClusterNode]:
    """The nodes of a list. gpu: the name of the resource."""
    nodes = []
    for item in listed.get("items", []):
        status = item["status"]
        addresses = {entry["type"]: entry["address"] for entry in status.get("addresses", [])}
        name, has = item["metadata"]["name"], status.get("allocatable", {})
        ready = _condition(item, "Ready").get("status") == "True"
        nodes.append(
            ClusterNode(
                name,
                addresses.get("InternalIP", name),
                int(quantity(has.get("cpu", "0"))),
                int(quantity(has.get("memory", "0"))),
                int(quantity(has.get(gpu, "0"))),
                up=ready and not item.get("spec", {}).get("unschedulable", False),
            )
        )
    return nodes


def with_decided_devices(config: RunConfig, nodes: Sequence[ClusterNode]) -> RunConfig:
    """The configuration with each `device = "auto"` decided by the GPUs of the nodes: the head asks nobody.

    Raises ConfigError where the nodes are not known.
    """
    changes: dict[str, Any] = {}
    for stage in demands(config):
        if stage.device != "auto":
            continue
        if ANY_NODE in nodes:
            raise ConfigError(
                f'{stage.stage}.device = "auto", and the nodes of the cluster cannot be asked here',
                f"give --{stage.stage}.device cpu, or cuda",
            )
        device = "cuda" if stage.on_gpus(gpus_of_nodes(nodes)) else "cpu"
        changes[stage.stage] = getattr(config, stage.stage).model_copy(update={"device": device})
    return config.model_copy(update=changes)


def run_status(jobs: Mapping[str, Any], pods: Mapping[str, Any]) -> JobStatus:
    """The state of a run's head, by lists of the run's Jobs and of its Pods.

    While an object is being deleted the run has not ended.
    """
    items = jobs.get("items", [])
    deleted = any(item["metadata"].get("deletionTimestamp") for item in items)
    head = next((item for item in items if item["metadata"]["labels"].get(COMPONENT) == HEAD), None)
    if deleted:
        return JobStatus("running", reason="its objects are being deleted")
    if head is None:
        return JobStatus("ended", reason="unknown to Kubernetes")
    for kind in ("Complete", "SuccessCriteriaMet", "Failed", "FailureTarget"):
        condition = _condition(head, kind)
        if condition.get("status") == "True":
            words = ": ".join(filter(None, (condition.get("reason", ""), condition.get("message", ""))))
            return JobStatus("ended", reason=words or kind)
    of_head = [pod for pod in pods.get("items", []) if pod["metadata"]["labels"].get(COMPONENT) == HEAD]
    return pod_status(of_head)


def pod_status(pods: Sequence[Mapping[str, Any]]) -> JobStatus:
    """The state of the newest of these Pods, of a Job that has not ended."""
    if not pods:
        return JobStatus("queued", reason="its Pod is not made yet")
    newest = max(pods, key=lambda pod: pod["metadata"].get("creationTimestamp", ""))
    node, status = newest.get("spec", {}).get("nodeName", ""), newest.get("status", {})
    if status.get("phase") == "Running":
        return JobStatus("running", node, "Running")
    if status.get("phase") in ("Succeeded", "Failed"):
        return JobStatus("queued", node, f"its Pod {status['phase'].lower()}, and is made again")
    return JobStatus("queued", node, waits_for(newest))


def waits_for(pod: Mapping[str, Any]) -> str:
    """The reason why a Pod has not begun, in Kubernetes' words."""
    for container in pod.get("status", {}).get("containerStatuses", []):
        if waiting := container.get("state", {}).get("waiting"):
            return _words(waiting)
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return _words(scheduled)
    return str(pod.get("status", {}).get("phase", "Pending"))


def is_stuck(pod: Mapping[str, Any]) -> bool:
    """Returns whether a Pod waits for what will not come by itself, such as an image."""
    return waits_for(pod).partition(":")[0] in STUCK


def _words(state: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (state.get("reason", ""), state.get("message", ""))))


def _condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = item.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition.get("type") == kind), {})
