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
from tests.support.deployed import ADDED, COMPOSE, DEPLOY, OVERLAYS, STAGES, compose, objects, working_module
from tests.support.kustomize import pod_spec

SECRETS = (COMPOSE.parent / "secrets.sh").read_text()
# What a drain needs beside what the run file allows: goodbyes, engines that end.
SLACK_S = 15


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_dockerfiles_have_no_finding() -> None:
    found = tool("hadolint", *map(str, sorted((DEPLOY / "docker").glob("Dockerfile*"))))
    assert found.returncode == 0, found.stdout


def test_the_compose_file_is_one() -> None:
    found = tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    assert found.returncode == 0, found.stdout + found.stderr


def test_containers_of_compose_may_do_nothing_that_they_need_not() -> None:
    told = compose()
    for name, service in told["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        user, _, group = service["user"].partition(":")
        # The group may read the secrets.
        assert group == "10001" and user.isdecimal() and user != "0", name
        if "obs" in service["profiles"]:
            continue  # images of others
        assert user == "10001", name
        assert "disable" in service["healthcheck"] or service["healthcheck"]["test"][0] == "CMD", name
    for service in told["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert told["networks"]["services"] == {"internal": True}


def paths(service: dict[str, Any]) -> set[str]:
    """Returns what a container of compose is told to read, by its variables."""
    return {value for value in service["environment"].values() if value.startswith("/run/")}


def test_containers_of_compose_have_the_files_that_they_are_told_of() -> None:
    told = compose()
    for name, service in told["services"].items():
        if "obs" in service["profiles"]:
            continue
        directories = [one["target"] for one in service["volumes"] if isinstance(one, dict)]
        for path in map(Path, paths(service)):
            mounted = path.parts[:3] == ("/", "run", "secrets") and path.name in service["secrets"]
            assert mounted or str(path.parent) in directories, (name, path)
    # Files that are replaced while containers run: a mount of one alone would go on showing what it was.
    assert not any("token" in name for name in told["secrets"])
    working = [one for one in told["services"].values() if working_module(one)]
    assert all(one["environment"]["OTEL_EXPORTER_OTLP_CERTIFICATE"] in paths(one) for one in working)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_prometheus_of_compose_asks_every_service_of_either_profile(profile: str) -> None:
    fixed, *added = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["scrape_configs"]
    (targets,) = [one["targets"] for one in fixed["static_configs"]]
    asked = {target.removesuffix(":9464") for target in targets} | set(STAGES)
    # Where a stage is not started its name is not known, and nothing is asked or missed.
    for stage, job in zip(STAGES, added, strict=True):
        (named,) = job["dns_sd_configs"]
        assert (named["names"], named["port"], named["type"]) == ([stage], 9464, "A")
        assert job["tls_config"]["server_name"] == stage
        assert {"target_label": "process", "replacement": stage} in job["relabel_configs"]
    told = compose()["services"]
    own = {"cpu": {"cpu", *STAGES}, "gpu": {"gpu", *(f"{stage}-gpu" for stage in STAGES)}}[profile]
    names = set()
    for name, service in told.items():
        if not working_module(service) or not own & set(service["profiles"]):
            continue
        networks = service["networks"]
        aliases = networks["services"]["aliases"] if isinstance(networks, dict) else []
        known = asked & {name, *aliases}
        assert len(known) == 1 and not names & known, name
        names |= known
    assert names == asked
    # They show the certificate that secrets.sh makes.
    (certified,) = [
        line.split() for line in SECRETS.replace("\\\n", "").splitlines() if "otel-collector" in line
    ]
    assert asked <= set(certified)
    assert {name for name, service in told.items() if working_module(service)} <= set(certified)
    (viewer,) = [one for one in told["prometheus"]["volumes"] if isinstance(one, dict)]
    for job in (fixed, *added):
        assert job["authorization"]["credentials_file"] == f"{viewer['target']}/viewer_token"
    # Alerts and dashboards know one job.
    assert all(
        {"target_label": "job", "replacement": fixed["job_name"]} in job["relabel_configs"] for job in added
    )
    assert viewer["source"].endswith("/viewer") and told["prometheus"]["secrets"] == ["tls_ca"]


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


@pytest.mark.parametrize("overlay", [*OVERLAYS, *ADDED])
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


def test_a_rotation_starts_no_pod_again() -> None:
    """A name with a hash of what a secret holds is another name after a rotation, and so another pod."""
    for overlay in ("cpu-demo", "gpu"):
        told = yaml.safe_load((DEPLOY / "k8s/overlays" / overlay / "kustomization.yaml").read_text())
        for made in told["secretGenerator"]:
            if not any("redis" in file for file in made["files"]):
                assert made["options"] == {"disableNameSuffixHash": True}, (overlay, made["name"])


def test_hosts_outside_of_the_cluster_are_let_in_where_an_overlay_says_so() -> None:
    def sources(of: list[dict[str, Any]]) -> list[dict[str, Any]]:
        policies = [one["spec"] for one in of if one["kind"] == "NetworkPolicy"]
        return [peer for one in policies for rule in one.get("ingress", []) for peer in rule["from"]]

    assert not any("ipBlock" in one for overlay in OVERLAYS for one in sources(objects(overlay)))
    found = objects("outside-hosts")
    for one in found:
        kubernetes_validate.validate(one, "1.37", strict=True)
    service, policy = found
    (gateway,) = [one for one in objects("base") if one["metadata"]["name"] == "gateway" and pod_spec(one)]
    labels = gateway["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    assert [list(one) for one in sources(found)] == [["ipBlock"]]


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
