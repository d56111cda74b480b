"""`[cluster]`: what a run asks of the manager of a cluster, for `earl up --on`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from earl.config.base import ConfigSection

# The name of a partition or account, or a constraint: what managers take, and nothing that a shell reads.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._:&|*,()+-]{0,127}$|^$"

# Names of Kubernetes: of a namespace, and of most other objects.
LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$|^$"


class KubernetesConfig(ConfigSection):
    """Pods of a run on Kubernetes, for `--on kubernetes` (docs/cluster.md)."""

    # Image of all Pods, with EARL in it, such as one built by deploy/docker/Dockerfile. `--on kubernetes`
    # requires it.
    #
    # Set it to the image that your cluster can pull.
    image: str = Field(default="", pattern=r"^\S*$")
    # Namespace of the run's objects.
    #
    # Set it to the namespace that you may use.
    namespace: str = Field(default="default", pattern=LABEL)
    # PersistentVolumeClaim with the access mode ReadWriteMany, which holds the runs' directories. `--on
    # kubernetes` requires it.
    #
    # Set it to a claim of your namespace that all nodes can mount.
    claim: str = Field(default="", pattern=SUBDOMAIN)
    # Directory at which every Pod mounts the claim. `runs_dir` must lie below it.
    #
    # Set it to where the machine that submits has mounted the claim: both must see the same paths.
    mount: str = Field(default="/shared", pattern=r"^/[A-Za-z0-9._/-]*[A-Za-z0-9._-]$")
    # Resource of a GPU, as nodes list it.
    #
    # Change it where GPUs are not NVIDIA's, or are shared ones under another name.
    gpu: str = Field(default="nvidia.com/gpu", pattern=r"^[A-Za-z0-9./_-]+$")
    # User and group of all processes, as a number. Files of a run can be read by this user alone.
    #
    # Set it to your own where you call commands on a machine that mounts the claim.
    user: int = Field(default=10001, ge=1)
    # Whoever makes the Jobs of a run: "none" (each is made by itself) or "jobset" (one JobSet makes and ends
    # all of them, where its controller is installed).
    #
    # Set it to "jobset" together with a queue, where a part of the Jobs must not hold nodes that the rest
    # waits for.
    gang: Literal["none", "jobset"] = "none"
    # Queue of Kueue that admits the run, as a label of its JobSet or Jobs; empty: none.
    #
    # Set it where Kueue admits the jobs of your namespace.
    queue: str = Field(default="", pattern=SUBDOMAIN)
    # Names of variables of your shell that the run's processes get, through the run's Secret.
    #
    # Name what a sink or an environment needs, such as "WANDB_API_KEY".
    variables: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = []


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
    # Kubernetes' part.
    kubernetes: KubernetesConfig = KubernetesConfig()
