"""`[cluster]`: what a run asks of the manager of a cluster, for `earl up --on`."""

from __future__ import annotations

from pydantic import Field

from earl.config.base import ConfigSection

# The name of a partition or account, or a constraint: what managers take, and nothing that a shell reads.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._:&|*,()+-]{0,127}$|^$"


class ClusterConfig(ConfigSection):
    """Jobs of a run on several machines (docs/cluster.md); a run on this machine has none."""

    # Cores of each job that computes: the trainer, a frozen model, a rollout worker. With threads = 0 its
    # ranks or engines share them.
    #
    # Raise it where steps are slow and nodes have more cores.
    cpus: int = Field(default=2, ge=1)
    # Memory of each job that computes.
    #
    # Raise it for larger models: the manager ends a job that takes more.
    memory_bytes: int = Field(default=4 << 30, ge=64 << 20)
    # Cores of the job that runs the launcher, with Valkey, scheduler, gateway, env hosts and dashboard.
    #
    # Raise it where many hosts play, or environments compute.
    head_cpus: int = Field(default=2, ge=1)
    # Memory of that job.
    #
    # Raise it with the number of env hosts.
    head_memory_bytes: int = Field(default=4 << 30, ge=64 << 20)
    # Seconds that a job may wait in the manager's queue; then the run ends and says so.
    #
    # Raise it where the cluster is busy.
    queue_s: float = Field(default=600.0, gt=0)
    # Seconds that a job may run, after which the manager ends it; 0: the partition's own limit.
    #
    # Set it where the partition demands one: shorter jobs start sooner.
    limit_s: float = Field(default=0.0, ge=0)
    # The Python that has Ray, for `--on ray`; empty: .venv-ray/bin/python where the run is submitted, which
    # `make setup-ray` makes.
    #
    # Set it to the environment with which your Ray cluster was started.
    ray_python: str = ""
    # Address of the Ray cluster, host:port of its GCS; empty: RAY_ADDRESS, or the cluster of this machine.
    #
    # Set it where the machine that submits is not part of the cluster.
    ray_address: str = ""
    # Slurm's partition; empty: its default.
    #
    # Set it where the default one is not for you.
    partition: str = Field(default="", pattern=NAME)
    # Slurm's account; empty: yours.
    #
    # Set it where several pay.
    account: str = Field(default="", pattern=NAME)
    # Features that the nodes must have, as for Slurm's --constraint; empty: any.
    #
    # Set it where nodes differ: a run wants equal ones.
    constraint: str = Field(default="", pattern=NAME)
