"""`earl up --on kubernetes` with kubectl on an imitated cluster, whose Pods are processes of this machine: a
run ends, is refused, and loses its Pods. No Kubernetes is in it (tests/support/kube_api.py)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from earl.config.load import load_run
from earl.errors import ConfigError, ServiceUnavailable
from earl.stack.cluster.kubernetes.kubectl import Kubectl, path_of
from earl.stack.cluster.kubernetes.manifests import write_directory
from earl.stack.cluster.kubernetes.objects import run_objects
from tests.support.cluster_runs import ClusterRuns, accounted
from tests.support.kube_api import SCHEMAS, ImitatedCluster, is_finished
from tests.support.launched import TICTACTOE
from tests.support.slurm_cluster import network_address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

VARIABLE, VALUE = "SINK_KEY", "kept-from-every-template"
# Workers look every half second if the run is over.
ENDED_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ImitatedCluster]:
    with ImitatedCluster(tmp_path, network_address()) as imitated:
        yield imitated


@pytest.fixture
def runs(cluster: ImitatedCluster) -> ClusterRuns:
    given = {VARIABLE: VALUE}
    return ClusterRuns(
        "kubernetes",
        cluster.claim / "runs",
        {**cluster.environment, **given},
        lambda: {pod.metadata["name"]: pod.phase for pod in cluster.pods},
    )


def keys(cluster: ImitatedCluster, **overrides: str) -> dict[str, str]:
    asked = {
        "image": "earl:cpu",
        "claim": "runs",
        "mount": str(cluster.claim),
        "variables": f'["{VARIABLE}"]',
    }
    return {**{f"cluster__kubernetes__{key}": value for key, value in asked.items()}, **overrides}


def until_jobs_are_over(cluster: ImitatedCluster) -> None:
    until = time.monotonic() + ENDED_S
    while not all(map(is_finished, cluster.of_kind("jobs").values())):
        assert time.monotonic() < until, cluster.of_kind("jobs")
        time.sleep(0.2)


def test_a_run_ends_its_jobs_and_its_secrets_are_in_a_secret_and_files_alone(
    cluster: ImitatedCluster, runs: ClusterRuns
):
    begun = runs.up("whole", **keys(cluster, scheduler__steps="30", rollout__workers="2"))
    assert begun.returncode == 0, begun.stderr
    assert "head starting on n1 as job earl-whole" in begun.stderr and "rollout-1 ready" in begun.stderr
    secrets = runs.secrets_of("whole")
    assert VALUE in json.dumps(cluster.of_kind("secrets"))
    described = json.dumps([cluster.of_kind(kind) for kind in ("jobs", "services", "networkpolicies")])
    processes = [process for pod in cluster.running() for process in pod.descendants()]
    arguments = " ".join(word for process in processes for word in process.cmdline())
    for secret in (VALUE, *secrets):
        assert secret not in described and secret not in arguments
    head = next(pod for pod in cluster.running() if "head" in pod.job)
    assert VALUE in {process.environ().get(VARIABLE) for process in head.descendants()}
    status = runs.until("whole", lambda status: status["state"] == "complete")
    assert status["status"]["step"] == 30 and accounted(status["status"]["ledger"])
    until_jobs_are_over(cluster)
    assert {pod.phase for pod in cluster.pods} == {"Succeeded"} and len(cluster.of_kind("jobs")) == 3
    runs.nothing_is_left("whole")


def test_what_cannot_run_is_refused_and_leaves_nothing(cluster: ImitatedCluster, runs: ClusterRuns):
    refused = {
        "cluster.kubernetes.claim is not set": {"cluster__kubernetes__claim": ""},
        "there is no PersistentVolumeClaim other": {"cluster__kubernetes__claim": "other"},
        "is not on the claim, which Pods mount at /elsewhere": {"cluster__kubernetes__mount": "/elsewhere"},
        "no node holds trainer: it asks for 64 cores": {"cluster__cpus": "64"},
        "where tensors and Valkey's traffic are not encrypted": {"data_plane__trusted_network": "false"},
        "NONE is not set in this shell": {"cluster__kubernetes__variables": '["NONE"]'},
    }
    for words, overrides in refused.items():
        begun = runs.up("refused", **keys(cluster, **overrides))
        assert begun.returncode == 2 and words in begun.stderr, begun.stderr
    assert not cluster.of_kind("jobs") and not cluster.of_kind("secrets")
    assert not list(runs.runs.iterdir())


def test_kubectl_carries_the_calls_and_renders_the_directory(
    cluster: ImitatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBECONFIG", cluster.environment["KUBECONFIG"])
    calls = Kubectl()
    assert [each["metadata"]["name"] for each in calls.get("/api/v1/nodes")["items"]] == ["n1", "n2"]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"a": "b"}}
    path = path_of("default", "secrets")
    assert calls.create(path, secret)["metadata"]["uid"] and calls.get(f"{path}/x")["stringData"]
    with pytest.raises(ConfigError, match="already exists"):
        calls.create(path, secret)
    with pytest.raises(ConfigError, match="was unexpected"):
        calls.create(path, {**secret, "metadata": {"name": "y"}, "typo": "b"})
    calls.delete(f"{path}/x")
    calls.delete(f"{path}/x")
    assert calls.get(f"{path}/x") == {}
    monkeypatch.setenv("KUBECONFIG", str(unreachable(tmp_path)))
    with pytest.raises(ServiceUnavailable, match="Kubernetes does not answer"):
        calls.get("/api/v1/nodes")
    given = keys(cluster, trainer__device="cpu", rollout__device="cpu")
    config = load_run(TICTACTOE, [(key.replace("__", "."), value) for key, value in given.items()])
    made = run_objects(config, "{}", "0f1e", str(cluster.claim / "runs" / "tictactoe"))
    write_directory(made, tmp_path / "objects")
    command = ("kubectl", "kustomize", str(tmp_path / "objects"))
    rendered = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, check=True).stdout))
    names = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    assert names == {(each["kind"], each["metadata"]["name"]) for each in (made.secret, *made.public)}
    for each in rendered:
        kubernetes_validate.validate(each, SCHEMAS, strict=True)


def unreachable(directory: Path) -> Path:
    """A kubeconfig of a cluster that does not answer."""
    file = directory / "unreachable"
    named = [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}]
    context = [{"name": "x", "context": {"cluster": "x", "user": ""}}]
    content = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
    file.write_text(json.dumps({**content, "clusters": named, "contexts": context}))
    return file


def test_a_run_outlives_the_loss_of_each_of_its_pods(cluster: ImitatedCluster, runs: ClusterRuns):
    begun = runs.up("lost", **keys(cluster, scheduler__steps="100000"))
    assert begun.returncode == 0, begun.stderr
    for component in ("rollout", "trainer", "head"):
        step = runs.trains("lost")
        lost = cluster.lose(component)
        runs.recovers("lost", step)
        assert lost not in {pod.metadata["name"] for pod in cluster.running()}
    step = runs.trains("lost")
    head = next(pod for pod in cluster.running() if "head" in pod.job)
    assert head.process is not None
    os.kill(head.process.pid, signal.SIGTERM)  # as a drain of its node does
    runs.recovers("lost", step)
    ended = runs.earl("stop", str(runs.runs / "lost"))
    assert ended.returncode == 0, ended.stderr
    assert accounted(runs.status("lost")["status"]["ledger"])
    kinds = ("jobs", "secrets", "services", "networkpolicies")
    assert not any(cluster.of_kind(kind) for kind in kinds) and not cluster.pods
    runs.nothing_is_left("lost")
    resumed = runs.earl("resume", str(runs.runs / "lost"), "--scheduler.steps", str(step + 20))
    assert resumed.returncode == 0, resumed.stderr
    runs.until("lost", lambda status: status["state"] == "complete")
    until_jobs_are_over(cluster)
