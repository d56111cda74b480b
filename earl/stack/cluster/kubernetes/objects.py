"""The Kubernetes objects of one run, made from its run file. Pure.

    run file ─► Service, NetworkPolicy ─┐
             ─► a Job of the head       ├─ or one JobSet in place of the Jobs (cluster.kubernetes.gang)
             ─► a Job for each stage ───┘
    order ────► Secret: what the head runs, with the user's variables

Every Job is indexed, so that its Pods have host names; a stage's Pods differ by their index alone. Names
carry the run. No template holds a secret, or a number that another object must repeat.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from earl.config.cluster import KubernetesConfig
from earl.config.run import RunConfig
from earl.stack.cluster.manager import JobSize
from earl.stack.cluster.names import ORDER_VARIABLE, SLOTS_VARIABLE
from earl.stack.cluster.sizes import MOST_GPUS, job_sizes
from earl.stack.placement import demands

KubernetesObject = dict[str, Any]

# A label's values and a part of a host name have 63 characters: what Jobs, JobSets and Pods append fits, too.
LONGEST_NAME = 40
HEAD = "head"
INSTANCE, COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"
PART_OF = {"app.kubernetes.io/part-of": "earl"}
JOBSET_VERSION = "jobset.x-k8s.io/v1alpha2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# Where the head finds its order.
ORDER_DIRECTORY, ORDER_FILE = "/run/secrets/earl", "order.json"
# Pods of a node that is lost are made again after this; Kubernetes itself waits for five minutes.
UNREACHABLE_S = 60
# An agent ends its process within 20 s, and itself a little later.
WORKER_END_S = 40
# Beyond twice stack.stop_s, which bounds the end of a run.
HEAD_END_S = 60
# A Pod is lost with its node, and a head three times. Pods of a stage are made again for as long as the run.
HEAD_TRIES, WORKER_TRIES = 3, 1000
# Jobs that have ended stay for their Pods' logs.
KEPT_S = 300


@dataclass(frozen=True, slots=True)
class RunObjects:
    """The objects of one run. name: of each, or its beginning. order: the content of the run's Secret.

    owner: the Job of the head, or the JobSet: what ends with the run. others: all but the Secret.
    """

    name: str
    namespace: str
    owner: KubernetesObject
    others: tuple[KubernetesObject, ...]
    order: str

    @property
    def secret(self) -> KubernetesObject:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": _metadata(self.name, self.namespace, HEAD, self.name),
            "type": "Opaque",
            "stringData": {ORDER_FILE: self.order},
        }

    @property
    def public(self) -> tuple[KubernetesObject, ...]:
        """The objects that hold no secret."""
        return (*self.others, self.owner)


def object_name(run: str) -> str:
    """The name of a run's objects. Runs whose names differ have different ones.

    >>> object_name("tictactoe")
    'earl-tictactoe'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    if slug == run and len(f"earl-{slug}") <= LONGEST_NAME:
        return f"earl-{slug}"
    digest = hashlib.sha256(run.encode()).hexdigest()[:6]
    return f"earl-{slug[: LONGEST_NAME - len('earl--') - len(digest)].strip('-')}-{digest}"


def run_objects(config: RunConfig, order: str, order_name: str, run_directory: str) -> RunObjects:
    """The objects of a run whose devices are decided. order: JSON for the head. order_name: a random one.

    Raises ConfigError for sizes that the run file leaves open.
    """
    pods = PodTemplates(config, order_name, run_directory)
    settings = config.cluster.kubernetes
    name = pods.name
    sizes = job_sizes(config, MOST_GPUS)
    head_size = JobSize(config.cluster.head_cpus, config.cluster.head_memory_bytes)
    jobs = {HEAD: pods.job(HEAD, (), head_size)}
    for stage in demands(config):
        jobs[component_of(stage.stage)] = pods.job(
            component_of(stage.stage), stage.processes, sizes[stage.processes[0]]
        )
    network = _network_policy(name, settings.namespace)
    if settings.gang == "jobset":
        return RunObjects(name, settings.namespace, _job_set(pods, jobs), (network,), order)
    made = {component: _job(pods, component, spec) for component, spec in jobs.items()}
    owner = made.pop(HEAD)
    service = _service(name, settings.namespace)
    return RunObjects(name, settings.namespace, owner, (service, network, *made.values()), order)


def component_of(stage: str) -> str:
    """A stage as names of Kubernetes have it."""
    return stage.replace("_", "-")


class PodTemplates:
    """Templates of the Pods of one run."""

    def __init__(self, config: RunConfig, order_name: str, run_directory: str) -> None:
        self._config = config
        self.settings = config.cluster.kubernetes
        self._order_name = order_name
        self._run_directory = run_directory
        self.name = object_name(config.name)

    def job(self, component: str, processes: Sequence[str], size: JobSize) -> KubernetesObject:
        """The specification of the Job that runs these processes, each in one Pod; none: the head."""
        cluster = self._config.cluster
        spec = {
            "completionMode": "Indexed",
            "completions": max(1, len(processes)),
            "parallelism": max(1, len(processes)),
            "backoffLimit": WORKER_TRIES if processes else HEAD_TRIES,
            "template": {
                "metadata": {"labels": labels(self.name, component)},
                "spec": self._pod(component, processes, size),
            },
        }
        if cluster.limit_s:
            spec["activeDeadlineSeconds"] = math.ceil(cluster.limit_s)
        return spec

    def _pod(self, component: str, processes: Sequence[str], size: JobSize) -> KubernetesObject:
        """A Pod's specification, as the Pod Security Standard "restricted" demands it."""
        settings = self.settings
        is_head = not processes
        mounts: list[KubernetesObject] = [
            {"name": "run", "mountPath": settings.mount},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "arenas", "mountPath": self._config.data_plane.arena_dir},
        ]
        volumes: list[KubernetesObject] = [
            {"name": "run", "persistentVolumeClaim": {"claimName": settings.claim}},
            {"name": "tmp", "emptyDir": {}},
            # This Pod's alone: others read its arenas over the network. The Pod's memory bounds it.
            {"name": "arenas", "emptyDir": {"medium": "Memory"}},
        ]
        if is_head:
            mounts.append({"name": "order", "mountPath": ORDER_DIRECTORY, "readOnly": True})
            volumes.append({"name": "order", "secret": {"secretName": self.name, "defaultMode": 0o440}})
        container = {
            "name": component,
            "image": settings.image,
            "args": self._command(processes),
            "env": self._variables(is_head),
            "resources": resources(size, settings.gpu),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": mounts,
        }
        return {
            **({} if settings.gang == "jobset" else {"subdomain": self.name}),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": (
                math.ceil(2 * self._config.stack.stop_s) + HEAD_END_S if is_head else WORKER_END_S
            ),
            "securityContext": security(settings),
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{state}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": UNREACHABLE_S,
                }
                for state in ("not-ready", "unreachable")
            ],
            "containers": [container],
            "volumes": volumes,
        }

    def _command(self, processes: Sequence[str]) -> list[str]:
        if not processes:
            return ["python", "-m", "earl.cli.run.pod_head", f"{ORDER_DIRECTORY}/{ORDER_FILE}"]
        # A stage's processes are called alike, and differ by their number.
        process = re.sub(r"-0$", "-$(EARL_POD_INDEX)", processes[0])
        slot = "earl.stack.cluster.kubernetes.slot"
        return ["python", "-m", slot, self._run_directory, process, f"{self._config.cluster.queue_s:g}"]

    def _variables(self, is_head: bool) -> list[KubernetesObject]:
        fields = {
            "EARL_POD_NAME": "metadata.name",
            "EARL_POD_NODE": "spec.nodeName",
            "EARL_POD_IP": "status.podIP",
            "EARL_POD_INDEX": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
        }
        given = {ORDER_VARIABLE: self._order_name}
        if is_head:
            given[SLOTS_VARIABLE] = f"{self._run_directory}/cluster/slots"
        references = {name: {"fieldRef": {"fieldPath": path}} for name, path in fields.items()}
        return [
            *({"name": name, "valueFrom": reference} for name, reference in references.items()),
            *({"name": name, "value": value} for name, value in given.items()),
        ]


def labels(name: str, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "earl",
        **PART_OF,
        "app.kubernetes.io/managed-by": "earl",
        INSTANCE: name,
        COMPONENT: component,
    }


def resources(size: JobSize, gpu: str) -> KubernetesObject:
    """The resources of a container: its memory and GPUs are limits, too."""
    gpus = {gpu: str(size.gpus)} if size.gpus else {}
    memory = {"memory": str(size.memory_bytes)}
    return {"requests": {"cpu": str(size.cpus), **memory, **gpus}, "limits": {**memory, **gpus}}


def security(settings: KubernetesConfig) -> KubernetesObject:
    """The security context of a Pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": settings.user,
        "runAsGroup": settings.user,
        "fsGroup": settings.user,
        # Otherwise each Pod that starts would walk through all files of the claim.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _metadata(name: str, namespace: str, component: str, instance: str) -> KubernetesObject:
    return {"name": name, "namespace": namespace, "labels": labels(instance, component)}


def _job(pods: PodTemplates, component: str, spec: Mapping[str, Any]) -> KubernetesObject:
    metadata = _metadata(f"{pods.name}-{component}", pods.settings.namespace, component, pods.name)
    metadata["labels"] |= _queue(pods.settings)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {**spec, "ttlSecondsAfterFinished": KEPT_S},
    }


def _job_set(pods: PodTemplates, jobs: Mapping[str, KubernetesObject]) -> KubernetesObject:
    """One object that makes all Jobs of a run, and ends them when the head has ended."""
    metadata = _metadata(pods.name, pods.settings.namespace, HEAD, pods.name)
    metadata["labels"] |= _queue(pods.settings)
    replicated = [
        {
            "name": component,
            "replicas": 1,
            "template": {"metadata": {"labels": labels(pods.name, component)}, "spec": spec},
        }
        for component, spec in jobs.items()
    ]
    return {
        "apiVersion": JOBSET_VERSION,
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [HEAD]},
            "ttlSecondsAfterFinished": KEPT_S,
            "replicatedJobs": replicated,
        },
    }


def _queue(settings: KubernetesConfig) -> dict[str, str]:
    return {QUEUE_LABEL: settings.queue} if settings.queue else {}


def _service(name: str, namespace: str) -> KubernetesObject:
    """Gives the Pods of a run names, before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, namespace, "network", name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {INSTANCE: name},
        },
    }


def _network_policy(name: str, namespace: str) -> KubernetesObject:
    """Lets Pods of EARL alone reach those of the run: tensors and Valkey's traffic have no TLS."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(name, namespace, "network", name),
        "spec": {
            "podSelector": {"matchLabels": {INSTANCE: name}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": PART_OF}}]}],
        },
    }
