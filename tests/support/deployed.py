"""The files below deploy/, read as what they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.kustomize import Object, pod_spec, render

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
# Together they hold every object of a run: rdma is gpu and more, and both overlays begin with the base.
OVERLAYS = ["overlays/cpu-demo", "overlays/rdma"]
# What is added to an overlay by its name among the overlay's resources.
ADDED = ["outside-hosts", "reference", "teacher", "reward-model"]
# Stages that a run may have, by the names of their pods and profiles, and the module of each.
STAGES = {
    "reference": "services.trainer.reference",
    "teacher": "services.trainer.teacher",
    "reward-model": "services.trainer.reward_model",
}


def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


def objects(directory: str) -> list[Object]:
    """Objects of a base, an overlay or what is added to one."""
    return render(DEPLOY / "k8s" / directory, lambda name: b"secret")


def makers(directory: str) -> dict[str, Object]:
    """The objects that make pods, by name."""
    return {one["metadata"]["name"]: one for one in objects(directory) if pod_spec(one) is not None}


def container(maker: Object) -> dict[str, Any]:
    (found,) = maker["spec"]["template"]["spec"]["containers"]
    return found


def programs(words: list[Any]) -> set[str]:
    """Returns what a command of a container calls: the first word, and what a shell is told to become."""
    told = [str(word) for word in words if word not in ("tini", "--")]
    found = {"tini"} & {str(word) for word in words}
    if not told:
        return found
    if told[0] == "sh":
        found |= set(re.findall(r"exec ([\w-]+)", " ".join(told)))
    return found | {told[0]}


def working_module(service: dict[str, Any]) -> str:
    """Returns which of EARL's services a container of compose is: "services.trainer"; "" for none."""
    return next((str(word) for word in service.get("command", []) if str(word).startswith("services.")), "")
