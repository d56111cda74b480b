"""A run on Kubernetes, for `earl up --on kubernetes`: its objects are shown (--dry-run) or created.

run file ─► checked, devices decided ─► order ─► objects ─► a directory or standard output, or kubectl
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from earl.cli.run.detached import LaunchOrder
from earl.cli.run.head import HeadOrder
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.cluster.folder import ClusterFolder, HeadJob
from earl.stack.cluster.kubernetes.manager import KubernetesManager
from earl.stack.cluster.kubernetes.manifests import manifest_list, write_directory
from earl.stack.cluster.kubernetes.objects import RunObjects, object_name, run_objects
from earl.stack.cluster.kubernetes.states import ANY_NODE, with_decided_devices
from earl.stack.cluster.manager import ClusterNode
from earl.stack.cluster.names import KUBERNETES
from earl.stack.cluster.places import check_cluster
from earl.stack.rundir import run_path


def dry_run(config: RunConfig, directory: Path | None, *, resume: bool) -> list[str]:
    """Writes the objects of a run, to standard output without a directory. Returns lines for the user.

    No cluster is called, and no file of the run is read. Raises ConfigError.
    """
    config = config.model_copy(update={"runs_dir": os.path.abspath(Path(config.runs_dir).expanduser())})
    config = checked(config, [ANY_NODE])
    order = LaunchOrder(config=config, resume=resume, waited_s=0.0, notes=[])
    made = objects_of(order, secrets.token_hex(8))
    if directory is None:
        sys.stdout.write(manifest_list(made))
        return []
    write_directory(made, directory)
    head = f"kubectl --namespace {made.namespace} exec {pod_of_head(made)} --"
    return [
        f"objects of {made.name}: {directory}, of which secrets/ is for you alone",
        f"start: kubectl apply --kustomize {directory}",
        f"show:  {head} earl status {run_path(config)}",
        f"end:   {head} earl stop {run_path(config)}; kubectl delete --kustomize {directory}",
    ]


def pod_of_head(made: RunObjects) -> str:
    """The Pod of a run's head, as kubectl takes it."""
    jobset = made.owner["kind"] == "JobSet"
    return f"job/{made.name}-head{'-0' if jobset else ''}"


def checked(config: RunConfig, nodes: Sequence[ClusterNode]) -> RunConfig:
    """The configuration for Kubernetes, with its devices decided. Raises ConfigError."""
    settings = config.cluster.kubernetes
    for key, value in (("image", settings.image), ("claim", settings.claim)):
        if not value:
            raise ConfigError(
                f"cluster.kubernetes.{key} is not set, and Pods need it",
                f"give --cluster.kubernetes.{key} NAME, or write it into the run file",
            )
    if not Path(config.runs_dir).is_relative_to(settings.mount):
        raise ConfigError(
            f"runs_dir = {config.runs_dir!r} is not on the claim, which Pods mount at {settings.mount}",
            f"give --runs-dir {settings.mount}/runs, or set cluster.kubernetes.mount",
        )
    config = with_decided_devices(config, nodes)
    check_cluster(config, nodes)
    return config


def objects_of(order: LaunchOrder, name: str) -> RunObjects:
    """The objects of a run. name: of the order, a random one. Raises ConfigError for a variable that the
    run is to get and the shell does not have."""
    config = order.config
    variables = config.cluster.kubernetes.variables
    if missing := [variable for variable in variables if variable not in os.environ]:
        raise ConfigError(
            f"cluster.kubernetes.variables: {', '.join(missing)} is not set in this shell",
            "set it, or leave it out",
        )
    given = HeadOrder(
        order=order,
        manager=KUBERNETES,
        directory=os.getcwd(),
        variables={variable: os.environ[variable] for variable in variables},
        name=name,
    )
    return run_objects(config, given.model_dump_json(), name, str(run_path(config)))


def submit_objects(manager: KubernetesManager, folder: ClusterFolder, order: LaunchOrder) -> HeadJob:
    """Creates the objects of a run. Returns the job of its head. Raises ConfigError."""
    config, name = order.config, secrets.token_hex(8)
    made = objects_of(order, name)
    head = HeadJob(
        manager.name, object_name(config.name), cluster=config.cluster.model_dump(mode="json"), order=name
    )
    folder.keep_job(head)  # before its Pods are there: they read it
    manager.launch(made)
    return head


def prepared(manager: KubernetesManager, config: RunConfig, nodes: Sequence[ClusterNode]) -> RunConfig:
    """The configuration for this cluster. Raises ConfigError for what it lacks."""
    config = checked(config, nodes)
    manager.check_claim()
    return config
