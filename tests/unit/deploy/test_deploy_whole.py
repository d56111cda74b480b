"""Checks what a run in containers needs in order to start, to be looked at and to grow is all there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from earl.config.load import read_toml
from earl.config.run import RunConfig
from earl.env.serve import load
from earl.stack.plan import plan
from tests.support.deployed import (
    ADDED,
    COMPOSE,
    DEPLOY,
    OVERLAYS,
    STAGES,
    compose,
    container,
    makers,
    objects,
    programs,
    working_module,
)
from tests.support.kustomize import Object

K8S = DEPLOY / "k8s"
RUN_FILES = sorted(K8S.glob("overlays/*/run.toml"))
PAGE = (DEPLOY.parent / "docs" / "deploy.md").read_text()
# By what a Dockerfile has a program of a container's command.
BROUGHT = {
    "earl": "pip install --no-cache-dir",
    "python": "/opt/earl",
    "python3": "/opt/earl",
    "sh": "FROM",
    "tini": "tini",
    "valkey-server": "/bin/valkey-server",
}


def run_of(file: Path) -> RunConfig:
    return RunConfig.model_validate(read_toml(file))


# --- it can start ---------------------------------------------------------------------------


@pytest.mark.parametrize("image", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image_has_what_its_containers_call(image: str) -> None:
    """An overlay gives every pod its image, so either has the programs of all."""
    called: set[str] = set()
    for one in [*makers("base").values(), *(o for name in ADDED for o in makers(name).values())]:
        told = container(one)
        called |= programs([*told.get("command", []), *told.get("args", [])])
    for service in compose()["services"].values():
        if "obs" not in service["profiles"]:
            called |= programs(service["command"])
    text = (DEPLOY / "docker" / image).read_text()
    assert {"valkey-server", "earl", "python", "sh"} <= called <= BROUGHT.keys()
    assert [one for one in sorted(called) if BROUGHT[one] not in text] == []


@pytest.mark.parametrize("file", RUN_FILES, ids=lambda file: file.parent.name)
def test_the_engine_of_an_overlay_is_in_its_image(file: Path) -> None:
    rollout = run_of(file).rollout
    text = (DEPLOY / "docker" / "Dockerfile.cuda").read_text()
    assert rollout.engine == "torch" or (rollout.engine_python and rollout.engine_python in text)


@pytest.mark.parametrize("file", RUN_FILES, ids=lambda file: file.parent.name)
def test_somebody_plays_the_environment_of_an_overlay(file: Path) -> None:
    overlay = f"overlays/{file.parent.name}"
    there = makers(overlay)
    assert "env" in there or any(one["metadata"]["name"] == "gateway-outside" for one in objects(overlay))
    if "env" in there:
        served, verb, target = container(there["env"])["args"][1:4]
        assert (served, verb) == ("env", "serve")
        assert run_of(file).mixture[0].name in load(target)
        hosts, gateways = there["env"]["spec"]["replicas"], 1
        for one in objects(overlay):
            if one["kind"] == "HorizontalPodAutoscaler":
                gateways = one["spec"]["maxReplicas"]
        assert hosts >= gateways


def test_a_model_can_be_put_where_the_run_looks_for_it() -> None:
    """Before the run: the namespace and its volume alone, by their label; then a pod that holds it."""
    path = run_of(K8S / "overlays/gpu/run.toml").model.path
    there = objects("overlays/gpu")
    stored = [one for one in there if "app.kubernetes.io/component" in one["metadata"].get("labels", {})]
    assert {(one["kind"], one["metadata"]["name"]) for one in stored} == {
        ("Namespace", "earl"),
        ("PersistentVolumeClaim", "run"),
    }
    assert {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in stored} == {"storage"}
    pod = yaml.safe_load((K8S / "model-loader.yaml").read_text())
    kubernetes_validate.validate(pod, "1.37", strict=True)
    (held,) = pod["spec"]["containers"]
    assert {"name": "run", "persistentVolumeClaim": {"claimName": "run"}} in pod["spec"]["volumes"]
    assert held["volumeMounts"][0] == {"name": "run", "mountPath": "/var/lib/earl"}
    assert str(Path(path).parent) in held["command"][-1]
    # As "restricted" wants it of the namespace's pods.
    assert pod["spec"]["securityContext"] == there_security(there)
    assert held["securityContext"] == container(makers("base")["scheduler"])["securityContext"]
    steps = [
        "docker build -f deploy/docker/Dockerfile.cuda",
        "deploy/k8s/secrets.sh deploy/k8s/overlays/gpu",
        "kubectl apply -k deploy/k8s/overlays/gpu --selector app.kubernetes.io/component=storage",
        "kubectl apply -f deploy/k8s/model-loader.yaml",
        f"model-loader:{path}",
        "kubectl -n earl delete pod model-loader",
        "kubectl apply -k deploy/k8s/overlays/gpu\n",
    ]
    places = [PAGE.find(step) for step in steps]
    assert -1 not in places and places == sorted(places), dict(zip(steps, places, strict=True))


def there_security(there: list[Object]) -> dict[str, Any]:
    (scheduler,) = [o for o in there if (o["kind"], o["metadata"]["name"]) == ("Deployment", "scheduler")]
    return scheduler["spec"]["template"]["spec"]["securityContext"]


def modules(config: RunConfig) -> set[str]:
    """Returns what the launcher of one machine would start of EARL's services."""
    return {spec.arguments[1] for spec in plan(config, Path("run.json")) if "services." in spec.arguments[1]}


def test_every_service_that_a_run_may_want_has_a_container() -> None:
    config = run_of(K8S / "overlays/cpu-demo/run.toml")
    sections = {
        "trainer": config.trainer.model_copy(update={"kl_coefficient": 0.1}),
        "teacher": config.teacher.model_copy(update={"path": "large"}),
        "reward_model": config.reward_model.model_copy(update={"path": "judge"}),
    }
    wanted = modules(config.model_copy(update=sections))
    assert wanted - modules(config) == set(STAGES.values())
    told = compose()["services"].values()
    for device, suffix in (("cpu", ""), ("gpu", "-gpu")):
        profiles = {device, *(f"{stage}{suffix}" for stage in STAGES)}
        started = {working_module(one) for one in told if profiles & set(one["profiles"])}
        assert started - {""} == wanted, device
        # Nobody waits for a stage that the run does not want.
        stages = [one for one in told if working_module(one) in STAGES.values()]
        assert len(stages) == 2 * len(STAGES) and not any(device in one["profiles"] for one in stages)
    pods = [*makers("base").values(), *(pod for stage in STAGES for pod in makers(stage).values())]
    assert {word for one in pods for word in container(one).get("args", []) if word in wanted} == wanted
    for file in RUN_FILES:
        stages = "reference" in makers(f"overlays/{file.parent.name}")
        assert stages == (run_of(file).trainer.kl_coefficient > 0), file


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_added_is_a_worker_like_the_others(stage: str) -> None:
    rollout, added = makers("base")["rollout"], makers(stage)[stage]
    secrets = (K8S / "secrets.sh").read_text()
    for one in (rollout, added):
        name = one["metadata"]["name"]
        said = {variable["name"]: variable.get("value") for variable in container(one)["env"]}
        assert said["EARL_ADVERTISE"] == f"$(POD_NAME).{name}.earl.svc" and f"'*.{name}.earl.svc'" in secrets
    known = [variable["name"] for variable in container(rollout)["env"]]
    assert [variable["name"] for variable in container(added)["env"]] == known
    assert STAGES[stage] in container(added)["args"]
    told = compose()["services"]
    for name in (stage, f"{stage}-gpu"):
        assert told[name]["environment"] == {**told["trainer"]["environment"], "EARL_ADVERTISE": name}


# --- it can be looked at --------------------------------------------------------------------


def test_the_dashboards_only_look() -> None:
    """Dashboards have a viewer's token and a certificate that is nobody else's, at the run's directory
    read-only.
    """
    service = compose()["services"]["dashboard"]
    said = service["environment"]
    assert set(said) & {"EARL_TOKENS", "EARL_REDIS_URL_FILE", "EARL_TOKEN"} == set()
    assert said["EARL_TOKEN_FILE"] == "/run/earl/viewer/viewer_token"
    mounted = [one["target"] for one in service["volumes"] if isinstance(one, dict)]
    assert mounted == ["/run/earl/viewer"] and "run:/var/lib/earl:ro" in service["volumes"]
    assert service["secrets"] == ["dashboard_cert", "dashboard_key", "tls_ca"]
    assert service["profiles"] == ["cpu", "gpu"]
    (published,) = service["ports"]
    _, outside, inside = published.replace(":-", "=").split(":")
    # The link names the port that it listens at.
    assert outside == inside and service["command"][-1].replace(":-", "=") == f"0.0.0.0:{inside}"
    pod = makers("base")["dashboard"]["spec"]["template"]["spec"]
    assert {one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one} == {
        "viewer",
        "dashboard",
    }
    (held,) = pod["containers"]
    assert {one["name"] for one in held["env"]} == set(said)
    assert all(one["readOnly"] for one in held["volumeMounts"] if one["name"] != "tmp")
    for overlay in OVERLAYS:
        (viewer,) = [one for one in objects(overlay) if one["metadata"]["name"] == "viewer"]
        assert list(viewer["data"]) == ["viewer_token"]
        secrets = {one["metadata"]["name"]: one for one in objects(overlay) if one["kind"] == "Secret"}
        shown = secrets["dashboard"]
        assert set(shown["data"]) == {"dashboard.pem", "dashboard.key", "ca.pem"}
        mounts = {one["name"]: one["mountPath"] for one in held["volumeMounts"]}
        files = {one["value"] for one in held["env"] if one["name"].startswith("EARL_TLS_")}
        assert files == {f"{mounts['tls']}/{name}" for name in shown["data"]}
    (inner,) = [
        one for one in objects("base") if one["metadata"]["name"] == "dashboard" and "ports" in one["spec"]
    ]
    assert inner["spec"].get("type", "ClusterIP") == "ClusterIP"


def allowed(of: list[Object], way: str, name: str) -> set[str]:
    """Names of pods that the policies let call `name` ("ingress"), or that it may call ("egress")."""
    found: set[str] = set()
    for one in of:
        if one["kind"] == "NetworkPolicy" and name in names_in(one["spec"]["podSelector"]):
            for rule in one["spec"].get(way, []):
                peers = [peer for side in ("from", "to") for peer in rule.get(side, [])]
                found |= {pod for peer in peers for pod in names_in(peer.get("podSelector", {}))}
    return found


def names_in(selector: dict[str, Any]) -> set[str]:
    labels = set(selector.get("matchLabels", {}).values())
    return labels | {value for one in selector.get("matchExpressions", []) for value in one["values"]}


def test_policies_let_the_dashboard_ask_and_nobody_else_ask_it() -> None:
    base = objects("base")
    assert allowed(base, "egress", "dashboard") == {"scheduler", "gateway"}
    assert allowed(base, "ingress", "dashboard") == set()
    for asked in ("scheduler", "gateway"):
        assert "dashboard" in allowed(base, "ingress", asked)
    assert "dashboard" not in allowed(base, "ingress", "valkey") | allowed(base, "ingress", "rollout")
    # The bus carries no TLS: these and no others reach it.
    workers = {"scheduler", "gateway", "rollout", "trainer", *STAGES}
    assert allowed(base, "ingress", "valkey") == workers


def test_grafanas_password_is_a_secret_of_its_own() -> None:
    told = compose()
    grafana = told["services"]["grafana"]
    file = Path(grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"])
    assert grafana["secrets"] == [file.name] and str(file.parent) == "/run/secrets"
    assert told["secrets"][file.name]["file"].endswith(f"/{file.name}")
    assert f'"$directory/{file.name}"' in (COMPOSE.parent / "secrets.sh").read_text()


# --- it can grow ----------------------------------------------------------------------------


def test_what_an_autoscaler_scales_is_scaled_by_nothing_else() -> None:
    for overlay in OVERLAYS:
        there = makers(overlay)
        for one in objects(overlay):
            if one["kind"] == "HorizontalPodAutoscaler":
                name = one["spec"]["scaleTargetRef"]["name"]
                assert "replicas" not in there[name]["spec"], name


def test_prometheus_of_a_cluster_finds_every_service() -> None:
    (job,) = yaml.safe_load((K8S / "prometheus.yml").read_text())["scrape_configs"]
    (port,) = [
        rule["regex"]
        for rule in job["relabel_configs"]
        if rule.get("source_labels") == ["__meta_kubernetes_pod_container_port_name"]
    ]
    base = objects("base")
    (policy,) = [one for one in base if one["metadata"]["name"] == "metrics"]
    asked = names_in(policy["spec"]["podSelector"])
    pods = makers("base")
    for stage in STAGES:
        pods |= makers(stage)
    serving = {
        name
        for name, one in pods.items()
        if {"name": port, "containerPort": 9464} in container(one).get("ports", [])
    }
    assert serving == asked == {"scheduler", "gateway", "rollout", "trainer", *STAGES}
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 9464}]
    for file in RUN_FILES:
        assert run_of(file).obs.metrics.endswith(":9464")
    # Pods are asked by address, so the name must be one that the certificate has.
    assert job["tls_config"]["server_name"] in (K8S / "secrets.sh").read_text().split()
    labels = {rule.get("target_label") for rule in job["relabel_configs"]}
    assert {"namespace", "pod", "run", "process"} <= labels


def test_every_script_of_the_shell_is_one() -> None:
    for script in sorted(DEPLOY.rglob("*.sh")):
        subprocess.run(["sh", "-n", str(script)], check=True, timeout=10)
