"""The Pod templates of `earl up --on kubernetes --dry-run`, as pods under podman: a few steps are trained,
and the Pods end with the run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from earl.cli.run.detached import LaunchOrder
from earl.cli.run.pods import checked, objects_of
from earl.config.load import load_run
from earl.stack.cluster.kubernetes.states import ANY_NODE
from tests.support import containers, kube
from tests.support.containers import inside, podman
from tests.support.kube import Cluster
from tests.support.launched import SMALL, TICTACTOE

SUBNET = "10.89.202"
# What the image has for its user to write to.
MOUNT = "/var/lib/earl"
KEYS = {
    **SMALL,
    "name": "pods",
    "runs_dir": f"{MOUNT}/runs",
    "scheduler.steps": "4",
    "scheduler.train_limit_s": "0",
    "stack.start_s": "300",
    "trainer.device": "cpu",
    "rollout.device": "cpu",
    "data_plane.trusted_network": "true",
    "data_plane.arena_dir": "/arenas",  # podman has its own /dev/shm
    "cluster.kubernetes.image": containers.IMAGE,
    "cluster.kubernetes.claim": "runs",
    "cluster.kubernetes.mount": MOUNT,
}
PODS = ("earl-pods-head", "earl-pods-trainer", "earl-pods-rollout")
WITHIN_S, POLL_S = 600.0, 2.0


@pytest.fixture
def cluster(image: str) -> Iterator[Cluster]:
    # Not below pytest's directory, which nobody else may enter: the pods' user mounts these.
    scratch = Path(tempfile.mkdtemp(prefix="earl-kube-", dir="/var/tmp"))
    scratch.chmod(0o755)
    config = checked(load_run(TICTACTOE, list(KEYS.items()), elsewhere=True), [ANY_NODE])
    made = objects_of(LaunchOrder(config=config, resume=False), "0f1e")
    secrets = scratch / "secrets"
    secrets.mkdir(mode=0o755)
    order = secrets / "order.json"
    order.write_text(made.order)
    os.chown(order, 0, containers.USER)
    order.chmod(0o640)
    pods = Cluster(list(made.public), f"earl-test-{os.getpid()}", SUBNET, secrets, scratch)
    try:
        pods.create()
        yield pods
    finally:
        pods.down()
        shutil.rmtree(scratch)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_generated_pods_train_and_end_with_the_run(cluster: Cluster) -> None:
    others = {pod["Id"] for pod in kube.pods()}
    for name in PODS:
        await asyncio.to_thread(cluster.start, name)
    names = [cluster.container(name) for name in PODS]
    until, steps = time.monotonic() + WITHIN_S, 0
    while running(names):
        assert time.monotonic() < until, "\n".join(containers.said(name, 20) for name in names)
        shown = inside(names[0], "earl", "status", f"{MOUNT}/runs/pods", "--json")
        if shown.returncode == 0:
            steps = max(steps, json.loads(shown.stdout).get("status", {}).get("step", 0))
        await asyncio.sleep(POLL_S)
    codes = {name: int(podman("inspect", "--format", "{{.State.ExitCode}}", name)) for name in names}
    assert set(codes.values()) == {0}, "\n".join(containers.said(name, 20) for name in names)
    file = Path(podman("volume", "inspect", "--format", "{{.Mountpoint}}", cluster.claim("runs")).strip())
    job = json.loads((file / "runs" / "pods" / "cluster" / "job.json").read_text())
    launch = json.loads((file / "runs" / "pods" / "launch.json").read_text())
    assert job["ended"] and job["code"] == 0
    assert launch["outcome"] == "complete" and launch["status"]["step"] == 4 >= steps > 0
    # Every pod has memory of its own.
    paths = {path for worker in launch["status"]["workers"] for path in worker["transfers"]}
    assert paths == {"ucx-tcp"}
    await asyncio.to_thread(cluster.down)
    assert {pod["Id"] for pod in kube.pods()} <= others


def running(names: list[str]) -> bool:
    return any(podman("inspect", "--format", "{{.State.Running}}", name).strip() == "true" for name in names)
