"""deploy/k8s, base, overlay cpu-demo and the reference stage, as pods under podman: a few steps trained over
the wire."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import containers, kube
from tests.support.containers import DEPLOY, inside
from tests.support.kube import Cluster
from tests.support.kustomize import Object, render

SUBNET = "10.89.201"
# A run of some seconds: the same services and settings, and a loss that wants the reference stage.
SHORTER = {
    "steps = 140": "steps = 4",
    "batches = 6": "batches = 1",
    "episodes = 512": "episodes = 64",
    "[trainer]\n": "[trainer]\nkl_coefficient = 0.01\n",
}


def shortened(objects: list[Object]) -> list[Object]:
    (run,) = [one for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == "run"]
    for long, short in SHORTER.items():
        assert long in run["data"]["run.toml"]
        run["data"]["run.toml"] = run["data"]["run.toml"].replace(long, short)
    return objects


@pytest.fixture
def cluster(image: str) -> Iterator[Cluster]:
    # Not below pytest's directory, which nobody else may enter: the pods' user mounts these.
    scratch = Path(tempfile.mkdtemp(prefix="earl-kube-", dir="/var/tmp"))
    scratch.chmod(0o755)
    rendered = shortened(render(DEPLOY / "k8s" / "overlays" / "cpu-demo", lambda name: b""))
    rendered += render(DEPLOY / "k8s" / "reference", lambda name: b"")
    network = f"earl-test-{os.getpid()}"
    made = Cluster(rendered, network, SUBNET, scratch / "made" / "secrets", scratch)
    hosts = [made.address["scheduler"], made.address["gateway"]]
    try:
        containers.make_secrets(scratch / "made", "k8s/secrets.sh", *hosts)
        for file in (scratch / "made" / "secrets").iterdir():
            os.chown(file, 0, containers.USER)
            file.chmod(0o640)
        (scratch / "made" / "secrets").chmod(0o755)
        made.create()
        yield made
    finally:
        made.down()
        shutil.rmtree(scratch)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_pods_of_the_demo_train(cluster: Cluster) -> None:
    others = {pod["Id"] for pod in kube.pods()}
    services = ("valkey", "prepare", "scheduler", "gateway")
    names = (*services, "dashboard", "env", "trainer", "reference", "rollout")
    for name in names:
        await asyncio.to_thread(cluster.start, name)
    scheduler = f"{cluster.address['scheduler']}:7000"
    secrets = cluster.secrets
    async with containers.operator(scheduler, secrets) as client:
        status = await containers.finished(client, 600.0, [cluster.container(name) for name in names])
    ledger = status.ledger
    live = ledger.pending + ledger.leased + ledger.ready + ledger.planned
    assert ledger.issued == ledger.trained + ledger.evaluated + sum(ledger.dropped.values()) + live
    assert status.step == 4 and status.evaluations[-1].done == 64
    assert {worker.stage for worker in status.workers} == {"trainer", "rollout", "reference"}
    # Every pod has memory of its own.
    assert {path for worker in status.workers for path in worker.transfers} == {"ucx-tcp"}
    probe = inside(cluster.container("scheduler"), "python", "-m", "earl.rpc.probe", "localhost:7000")
    assert probe.returncode == 0, probe.stderr
    fleet = ("--scheduler", "scheduler.earl.svc:7000", "--gateway", "gateway.earl.svc:7000")
    shown = inside(cluster.container("dashboard"), "earl", "status", *fleet, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["status"]["step"] == 4
    link = containers.link_in(containers.said(cluster.container("dashboard")))
    assert link.startswith("https://localhost:8080/?token=")
    await asyncio.to_thread(cluster.down)
    assert {pod["Id"] for pod in kube.pods()} <= others
