"""Kubernetes as a cluster's manager, for whoever submits a run, looks at it or stops it.

    earl up ── all objects of the run ──► Kubernetes ──► Pods: the head's, and a slot for each process
    earl status, stop ── is it there? delete it ──┘

The name of a job here is that of the run's objects. What the head places in Pods never comes here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from earl.config.cluster import ClusterConfig
from earl.errors import ConfigError
from earl.stack.cluster.kubernetes.kubectl import Kubectl, is_forbidden, path_of
from earl.stack.cluster.kubernetes.objects import (
    INSTANCE,
    JOBSET_VERSION,
    KubernetesObject,
    RunObjects,
    labels,
    resources,
    security,
)
from earl.stack.cluster.kubernetes.slots import pod_address
from earl.stack.cluster.kubernetes.states import (
    ANY_NODE,
    is_stuck,
    nodes_of,
    pod_status,
    run_status,
    waits_for,
)
from earl.stack.cluster.manager import ClusterNode, JobRequest, JobSize, JobStatus

JOBS, JOBSETS = "batch/v1/jobs", f"{JOBSET_VERSION}/jobsets"
# Kinds of a run's objects, and the paths of each.
KINDS = {
    "Service": "services",
    "NetworkPolicy": "networking.k8s.io/v1/networkpolicies",
    "Secret": "secrets",
    "Job": JOBS,
    "JobSet": JOBSETS,
}
# The probe's Pod is scheduled, and its image pulled, within this; else each Pod checks when it starts.
PROBE_S, POLL_S = 120.0, 1.0
# Objects of an earlier launch are gone after this.
GONE_S = 60.0


class KubernetesManager:
    """The cluster that kubectl of this machine reaches, and one namespace of it."""

    name = "kubernetes"

    def __init__(self, config: ClusterConfig) -> None:
        """Raises ConfigError where there is no kubectl."""
        self._kubectl = Kubectl()
        self._settings = config.kubernetes

    def nodes(self) -> Sequence[ClusterNode]:
        """The nodes of the cluster; ANY_NODE where this user may not list them."""
        try:
            return nodes_of(self._kubectl.get("/api/v1/nodes"), self._settings.gpu)
        except ConfigError as error:
            if is_forbidden(error):
                return [ANY_NODE]
            raise

    def check_claim(self) -> None:
        """Raises ConfigError for a claim that is not there, or that only one node can mount."""
        claim, namespace = self._settings.claim, self._settings.namespace
        there = self._kubectl.get(path_of(namespace, "persistentvolumeclaims", claim))
        if not there:
            raise ConfigError(
                f"there is no PersistentVolumeClaim {claim} in namespace {namespace}",
                f"see: kubectl --namespace {namespace} get persistentvolumeclaims",
            )
        modes = there.get("spec", {}).get("accessModes", [])
        if "ReadWriteMany" not in modes:
            raise ConfigError(
                f"PersistentVolumeClaim {claim} has the access modes {', '.join(modes)}: one node mounts it",
                "name one with ReadWriteMany (NFS, CephFS, a cloud's file store)",
            )

    def launch(self, run: RunObjects) -> str:
        """Creates the objects of a run, all or none. Those of a launch that has ended are deleted before.

        Raises ConfigError for what the cluster refuses, and for a run of the name that has not ended.
        """
        if self._status(run.name).phase != "ended":
            raise ConfigError(
                f"namespace {run.namespace} has a run {run.name} that has not ended",
                f"choose another --name, or see: kubectl -n {run.namespace} get jobs",
            )
        self.cancel([run.name])
        until = time.monotonic() + GONE_S
        while self._jobs(run.name).get("items") and time.monotonic() < until:
            time.sleep(POLL_S)
        owner = self._create(run.owner)
        try:
            for each in (run.secret, *run.others):
                self._create(with_owner(each, owner))
        except Exception:
            self.cancel([run.name])
            raise
        return run.name

    def submit(self, job: JobRequest) -> str:
        """Refuses: the objects of a run are made by `launch`, all at once."""
        raise ConfigError(f"{job.name} is no run", "start the run with: earl up --on kubernetes")

    def statuses(self, jobs: Iterable[str]) -> Mapping[str, JobStatus]:
        return {job: self._status(job) for job in jobs}

    def _status(self, job: str) -> JobStatus:
        if "/" in job:
            return JobStatus("ended", reason="its Pod ends with the run")
        jobs = self._jobs(job)
        if not jobs.get("items") and self._settings.gang == "jobset":
            there = self._kubectl.get(path_of(self._settings.namespace, JOBSETS, job))
            if there and not there.get("status", {}).get("terminalState"):
                return JobStatus("queued", reason="its Jobs are not made yet")
        pods = self._kubectl.get(path_of(self._settings.namespace, "pods"), labelSelector=f"{INSTANCE}={job}")
        return run_status(jobs, pods)

    def _jobs(self, name: str) -> dict[str, Any]:
        return self._kubectl.get(path_of(self._settings.namespace, JOBS), labelSelector=f"{INSTANCE}={name}")

    def cancel(self, jobs: Iterable[str]) -> None:
        """Deletes the objects of runs; a process that the head has placed ends with its run."""
        namespace = self._settings.namespace
        for name in jobs:
            if "/" in name:
                continue
            if self._settings.gang == "jobset":
                self._kubectl.delete(path_of(namespace, JOBSETS, name))
            for item in self._jobs(name).get("items", []):
                self._kubectl.delete(path_of(namespace, JOBS, item["metadata"]["name"]))
            for kind in ("Secret", "NetworkPolicy", "Service"):
                self._kubectl.delete(path_of(namespace, KINDS[kind], name))

    def probe(self, file: str, value: str, nodes: Sequence[str]) -> Mapping[str, bool]:
        """Reads a file in one Pod that mounts the claim: all of them see the same. Raises ConfigError for a
        Pod that cannot begin."""
        namespace, name = self._settings.namespace, f"earl-probe-{secrets.token_hex(4)}"
        self._create(self._probe_job(name, file, value))
        until = time.monotonic() + PROBE_S
        try:
            while time.monotonic() < until:
                pods = self._kubectl.get(path_of(namespace, "pods"), labelSelector=f"{INSTANCE}={name}")
                for pod in pods.get("items", []):
                    phase, status = pod.get("status", {}).get("phase"), pod_status([pod])
                    if phase in ("Succeeded", "Failed"):
                        return {status.node or "the cluster": phase == "Succeeded"}
                    if is_stuck(pod):
                        raise ConfigError(
                            f"a Pod of {self._settings.image} cannot begin: {waits_for(pod)}",
                            "correct cluster.kubernetes.image and claim",
                        )
                time.sleep(POLL_S)
            return {}
        finally:
            self._kubectl.delete(path_of(namespace, JOBS, name))

    def _probe_job(self, name: str, file: str, value: str) -> KubernetesObject:
        settings = self._settings
        container = {
            "name": "probe",
            "image": settings.image,
            "args": ["sh", "-c", '[ "$(cat "$0")" = "$1" ]', file, value],
            "resources": resources(JobSize(1, 64 << 20), settings.gpu),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": "run", "mountPath": settings.mount}],
        }
        pod = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": security(settings),
            "containers": [container],
            "volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": settings.claim}}],
        }
        given = labels(name, "probe")
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": settings.namespace, "labels": given},
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": int(PROBE_S),
                "ttlSecondsAfterFinished": int(PROBE_S),
                "template": {"metadata": {"labels": given}, "spec": pod},
            },
        }

    def _create(self, given: KubernetesObject) -> dict[str, Any]:
        created = self._kubectl.create(path_of(self._settings.namespace, KINDS[given["kind"]]), given)
        if not created:
            raise ConfigError(
                f"the cluster has no namespace {self._settings.namespace}, or knows no {given['kind']}",
                "set cluster.kubernetes.namespace, or install what makes it (JobSet's controller)",
            )
        return created

    @staticmethod
    def node_address() -> str:
        return pod_address()


def with_owner(given: KubernetesObject, owner: Mapping[str, Any]) -> KubernetesObject:
    """The object, deleted by Kubernetes with its owner: when that has ended, and its time is over."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**given, "metadata": {**given["metadata"], "ownerReferences": [reference]}}
