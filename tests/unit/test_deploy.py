"""The files below deploy/: their formats, and what of EARL's own contracts can be read off them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from earl.config.load import load_run, read_toml
from tests.support.kustomize import pod_spec, render

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
# Together they hold every object: rdma is gpu and more, and both overlays begin with the base.
OVERLAYS = ["overlays/cpu-demo", "overlays/rdma"]
# What a drain needs beside what the run file allows: goodbyes, engines that end.
SLACK_S = 15


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def objects(overlay: str) -> list[dict[str, Any]]:
    return render(DEPLOY / "k8s" / overlay, lambda name: b"secret")


def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


def test_dockerfiles_have_no_finding() -> None:
    found = tool("hadolint", *map(str, sorted((DEPLOY / "docker").glob("Dockerfile*"))))
    assert found.returncode == 0, found.stdout


def test_the_compose_file_is_one() -> None:
    found = tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    assert found.returncode == 0, found.stdout + found.stderr


def test_containers_of_compose_may_do_nothing_that_they_need_not() -> None:
    told = compose()
    for name, service in told["services"].items():
        if "obs" in service["profiles"]:
            continue  # images of others
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"] and service["user"] == "10001:10001", (
            name
        )
        assert "disable" in service["healthcheck"] or service["healthcheck"]["test"][0] == "CMD", name
    for service in told["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert told["networks"]["services"] == {"internal": True}


def test_a_stop_waits_for_the_longest_drain() -> None:
    # The arenas' directory is the container's.
    config = load_run(DEPLOY / "k8s/overlays/cpu-demo/run.toml", [("data_plane.arena_dir", "/dev/shm")])
    longest_s = config.rollout.drain_s + config.rollout.linger_s + SLACK_S
    for name, service in compose()["services"].items():
        if "obs" not in service["profiles"]:
            assert float(service["stop_grace_period"].removesuffix("s")) >= longest_s, name
    (rollout,) = [one for one in objects("base") if one["metadata"]["name"] == "rollout" and pod_spec(one)]
    for overlay in ("cpu-demo", "gpu"):
        rollout_config = read_toml(DEPLOY / "k8s/overlays" / overlay / "run.toml")["rollout"]
        longest_s = rollout_config["drain_s"] + rollout_config["linger_s"] + SLACK_S
        assert rollout["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= longest_s, overlay


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_objects_are_valid_and_restricted(overlay: str) -> None:
    found = objects(overlay)
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names)
    for one in found:
        kubernetes_validate.validate(one, "1.37", strict=True)
        spec = pod_spec(one)
        if spec is None:
            continue
        who = one["metadata"]["name"]
        assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"], who
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, who
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {made["metadata"]["name"] for made in one["spec"].get("volumeClaimTemplates", [])}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"], who
            assert security["capabilities"]["drop"] == ["ALL"], who
            assert security["capabilities"].get("add", []) == (
                ["IPC_LOCK"] if overlay.endswith("rdma") and who in ("rollout", "trainer") else []
            )
            assert container["resources"]["requests"] and "memory" in container["resources"]["limits"], who
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, who


def test_overlays_patch_what_they_name() -> None:
    """Positions in lists are what JSON patches go by: they must still be those that are meant."""
    trainer = next(
        one for one in objects("overlays/rdma") if one["metadata"]["name"] == "trainer" and pod_spec(one)
    )
    spec = trainer["spec"]["template"]["spec"]
    said = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert (said["EARL_NODES"], trainer["spec"]["replicas"]) == ("2", 2)
    gpus = int(spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    ranks = read_toml(DEPLOY / "k8s/overlays/gpu/run.toml")["trainer"]["ranks"]
    assert int(said["EARL_NODES"]) * gpus == ranks
    assert spec["volumes"][6] == {"name": "arenas", "emptyDir": {"medium": "Memory", "sizeLimit": "256Gi"}}
    limits = spec["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8" and limits["rdma/hca_shared_devices_a"] == "1"
