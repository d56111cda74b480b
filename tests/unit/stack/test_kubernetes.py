"""A run on Kubernetes: its objects against Kubernetes' own schemas, what is refused, the cluster's words."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from earl.cli.run.detached import LaunchOrder
from earl.cli.run.head import HeadOrder
from earl.cli.run.pods import checked, dry_run, objects_of, pod_of_head
from earl.cli.run.up import show_objects
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.cluster.kubernetes.kubectl import Kubectl
from earl.stack.cluster.kubernetes.manager import KubernetesManager
from earl.stack.cluster.kubernetes.manifests import documents, manifest_list, write_directory
from earl.stack.cluster.kubernetes.objects import (
    INSTANCE,
    LONGEST_NAME,
    RunObjects,
    object_name,
)
from earl.stack.cluster.kubernetes.states import (
    ANY_NODE,
    nodes_of,
    pod_status,
    quantity,
    run_status,
    with_decided_devices,
)
from earl.stack.cluster.manager import ClusterNode, JobStatus
from earl.stack.cluster.managers import manager_of
from tests.support.jobset_schema import JOBSET
from tests.support.kube_api import SCHEMAS, ImitatedCluster
from tests.support.kustomize import pod_spec, render
from tests.support.paths import ROOT

GIB = 1 << 30
ASKED = {
    "cluster__kubernetes__image": "registry.example.com/earl:cpu",
    "cluster__kubernetes__claim": "runs",
    "runs_dir": "/shared/runs",
    "data_plane__trusted_network": "true",
    "trainer__device": "cpu",
    "rollout__device": "cpu",
}
ALL_STAGES = {
    "trainer__kl_coefficient": "0.1",
    "teacher__path": "/shared/large",
    "reward_model__path": "/shared/judge",
    "reference__device": "cpu",
    "teacher__device": "cpu",
    "reward_model__device": "cpu",
}


def config(**overrides: str) -> RunConfig:
    given = [(key.replace("__", "."), value) for key, value in {**ASKED, **overrides}.items()]
    return load_run(ROOT / "examples" / "tictactoe.toml", given, elsewhere=True)


def objects(**overrides: str) -> RunObjects:
    order = LaunchOrder(config=checked(config(**overrides), [ANY_NODE]), resume=False)
    return objects_of(order, "0f1e")


def pods_of(made: RunObjects) -> dict[str, Any]:
    """The templates of Pods by the names of their Jobs, and the Jobs' specifications."""
    if made.owner["kind"] == "JobSet":
        listed = {job["name"]: job["template"]["spec"] for job in made.owner["spec"]["replicatedJobs"]}
    else:
        listed = {each["metadata"]["name"]: each["spec"] for each in made.public if pod_spec(each)}
    return listed


# --- objects --------------------------------------------------------------------------------


@pytest.mark.parametrize("gang", ["none", "jobset"])
def test_every_object_is_valid_and_restricted(gang: str):
    made = objects(cluster__kubernetes__gang=gang, cluster__kubernetes__queue="gpus", **ALL_STAGES)
    for each in (made.secret, *made.public):
        if each["kind"] == "JobSet":
            JOBSET.validate(each)
            for job in each["spec"]["replicatedJobs"]:
                as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
                kubernetes_validate.validate(
                    {**as_job, "spec": job["template"]["spec"]}, SCHEMAS, strict=True
                )
        else:
            kubernetes_validate.validate(each, SCHEMAS, strict=True)
        assert each["metadata"]["labels"][INSTANCE] == made.name == "earl-tictactoe"
        assert each["metadata"]["name"].startswith(made.name) and each["metadata"]["namespace"] == "default"
    pods = pods_of(made)
    assert len(pods) == 6
    for spec in pods.values():
        pod = spec["template"]["spec"]
        assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 1
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        [container] = pod["containers"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }


def test_a_schema_refuses_what_a_jobset_has_not():
    made = objects(cluster__kubernetes__gang="jobset")
    wrong = copy.deepcopy(made.owner)
    wrong["spec"]["replicatedJobs"][0]["replica"] = 1
    assert JOBSET.is_valid(made.owner) and not JOBSET.is_valid(wrong)


def test_a_stage_is_one_job_whose_pods_know_their_process_by_their_index():
    made = objects(rollout__workers="3", cluster__limit_s="90.5", cluster__queue_s="30")
    rollout = pods_of(made)["earl-tictactoe-rollout"]
    assert (rollout["completions"], rollout["parallelism"], rollout["activeDeadlineSeconds"]) == (3, 3, 91)
    [container] = rollout["template"]["spec"]["containers"]
    assert container["args"][-3:] == ["/shared/runs/tictactoe", "rollout-$(EARL_POD_INDEX)", "30"]
    assert "EARL_POD_INDEX" in {entry["name"] for entry in container["env"]}
    assert container["resources"]["requests"] == {"cpu": "2", "memory": str(4 * GIB)}


def test_a_stage_on_gpus_asks_for_them_by_the_clusters_name():
    gpus = {"rollout__device": "cuda", "rollout__tp": "2", "rollout__kv_tokens": "1000"}
    made = objects(cluster__kubernetes__gpu="amd.com/gpu", rollout__max_context_tokens="80", **gpus)
    pods = pods_of(made)
    [rollout] = pods["earl-tictactoe-rollout"]["template"]["spec"]["containers"]
    [trainer] = pods["earl-tictactoe-trainer"]["template"]["spec"]["containers"]
    assert rollout["resources"]["limits"] == {"memory": str(4 * GIB), "amd.com/gpu": "2"}
    assert list(trainer["resources"]["limits"]) == ["memory"]


def test_the_variables_of_the_shell_are_in_the_secret_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SINK_KEY", "kept-from-templates")
    made = objects(cluster__kubernetes__variables='["SINK_KEY"]')
    assert "kept-from-templates" not in documents(made.public)
    order = HeadOrder.model_validate_json(made.secret["stringData"]["order.json"])
    assert order.variables == {"SINK_KEY": "kept-from-templates"}
    assert order.order.config.name == "tictactoe" and order.name == "0f1e"
    mounted = [
        name for name, spec in pods_of(made).items() if "secret" in json.dumps(spec["template"]["spec"])
    ]
    assert mounted == ["earl-tictactoe-head"]


@pytest.mark.parametrize("run", ["Tic.Tac_Toe", "tic-tac-toe", "x" * 64, "y" * 64, "7"])
def test_names_of_objects_carry_the_run_and_fit(run: str):
    name = object_name(run)
    assert name.startswith("earl-") and len(name) <= LONGEST_NAME and not name.endswith("-")
    assert name == name.lower() and "_" not in name and "." not in name


def test_runs_of_different_names_have_objects_of_different_names():
    runs = ["a.b", "a-b", "A-b", "a_b", "x" * 63, "x" * 64]
    assert len({object_name(run) for run in runs}) == len(runs)


@pytest.mark.parametrize("gang", ["none", "jobset"])
def test_manifests_say_what_the_objects_are(gang: str):
    made = objects(cluster__kubernetes__gang=gang)
    assert list(yaml.safe_load_all(manifest_list(made))) == [made.secret, *made.public]
    odd = {"a": ["yes", "1e3", "null", "", "-", "x: y", "é\n", {"b": [[1, True, None]]}, []], "on": {}}
    assert yaml.safe_load(documents([odd])) == odd


def test_a_directory_is_what_kustomize_renders_with_its_secrets_apart(tmp_path: Path):
    made = objects(rollout__workers="2")
    directory = tmp_path / "objects"
    write_directory(made, directory)
    order = directory / "secrets" / "order.json"
    assert order.read_text() == made.order and order.stat().st_mode & 0o77 == 0
    assert "stringData" not in (directory / "run.yaml").read_text()
    rendered = {(each["kind"], each["metadata"]["name"]): each for each in render(directory, lambda _: b"x")}
    for each in made.public:
        assert rendered.pop((each["kind"], each["metadata"]["name"])) == each
    [(kind, name)] = rendered
    assert (kind, name) == ("Secret", made.name)
    with pytest.raises(ConfigError, match="is not empty"):
        write_directory(made, directory)


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cluster__kubernetes__image": ""}, "cluster.kubernetes.image is not set"),
        ({"cluster__kubernetes__claim": ""}, "cluster.kubernetes.claim is not set"),
        ({"runs_dir": "/elsewhere"}, "is not on the claim, which Pods mount at /shared"),
        ({"trainer__device": "auto"}, 'trainer.device = "auto", and the nodes'),
        ({"data_plane__trusted_network": "false"}, "are not encrypted"),
        (
            {"trainer__devices": "0-1", "trainer__ranks": "2"},
            "trainer.devices names devices",
        ),
        ({"rollout__device": "cuda", "rollout__max_context_tokens": "0"}, "leaves sizes open"),
        ({"cluster__kubernetes__variables": '["NOT_SET_HERE"]'}, "NOT_SET_HERE is not set in this shell"),
    ],
)
def test_a_run_without_what_pods_need_is_refused(asked: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words):
        dry_run(config(**asked), None, resume=False)


def test_a_dry_run_is_for_kubernetes_alone_and_says_how_to_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "")  # no kubectl
    with pytest.raises(ConfigError, match="--dry-run makes objects of Kubernetes, and not of slurm"):
        show_objects(config(), "slurm", None, resume=False)
    show_objects(config(), "kubernetes", None, resume=False)
    kinds = [each["kind"] for each in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds == ["Secret", "Service", "NetworkPolicy", "Job", "Job", "Job"]
    show_objects(config(), "kubernetes", tmp_path / "kustomize", resume=False)
    lines = capsys.readouterr().err
    assert f"kubectl apply --kustomize {tmp_path}/kustomize" in lines
    assert "exec job/earl-tictactoe-head -- earl status /shared/runs/tictactoe" in lines
    assert pod_of_head(objects(cluster__kubernetes__gang="jobset")) == "job/earl-tictactoe-head-0"
    with pytest.raises(ConfigError, match="kubectl is not on PATH"):
        manager_of("kubernetes", config().cluster)


# --- states ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"), [("4", 4), ("3920m", 3.92), ("16Gi", 16 * GIB), ("2k", 2000), ("1.5M", 1.5e6)]
)
def test_quantities_are_numbers(text: str, number: float):
    assert quantity(text) == pytest.approx(number)


def test_nodes_have_what_they_allocate_and_devices_are_decided_by_them():
    item = {
        "metadata": {"name": "n1"},
        "spec": {"unschedulable": True},
        "status": {
            "addresses": [
                {"type": "Hostname", "address": "n1"},
                {"type": "InternalIP", "address": "10.0.0.1"},
            ],
            "allocatable": {"cpu": "15890m", "memory": "64Gi", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    [node] = nodes_of({"items": [item]}, "nvidia.com/gpu")
    assert node == ClusterNode("n1", "10.0.0.1", 15, 64 * GIB, 8, up=False)
    auto = config(trainer__device="auto", rollout__device="auto")
    decided = with_decided_devices(auto, [node])
    assert (decided.trainer.device, decided.rollout.device) == ("cuda", "cuda")
    [without] = nodes_of({"items": [item]}, "amd.com/gpu")
    assert with_decided_devices(auto, [without]).trainer.device == "cpu"


def job(component: str, condition: str = "", **metadata: str) -> dict[str, Any]:
    given = {"labels": {"app.kubernetes.io/component": component}, **metadata}
    conditions = [{"type": condition, "status": "True", "reason": "Why"}] if condition else []
    return {"metadata": given, "status": {"conditions": conditions}}


def pod(phase: str, node: str = "", **status: Any) -> dict[str, Any]:
    metadata = {"labels": {"app.kubernetes.io/component": "head"}, "creationTimestamp": node}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase, **status}}


def test_a_run_is_as_its_heads_job_and_pod():
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    there = {"items": [job("trainer"), job("head")]}
    assert run_status(there, {"items": [pod("Running", "n1")]}) == JobStatus("running", "n1", "Running")
    queued = run_status(there, {"items": [pod("Pending", conditions=[unschedulable])]})
    assert queued == JobStatus("queued", "", "Unschedulable: 0/3")
    pulling = pod_status([pod("Pending", "n1", containerStatuses=[waiting])])
    assert pulling == JobStatus("queued", "n1", "ImagePullBackOff: no such image")
    again = pod_status([pod("Failed", "n1"), pod("Running", "n2")])
    assert again.phase == "running" and pod_status([pod("Failed", "n1")]).phase == "queued"
    assert run_status(there, {}).reason == "its Pod is not made yet"
    assert run_status({"items": [job("head", "Failed")]}, {}) == JobStatus("ended", "", "Why")
    assert run_status({"items": []}, {}).phase == run_status({"items": [job("trainer")]}, {}).phase == "ended"
    ending = {"items": [job("trainer", deletionTimestamp="now")]}
    assert run_status(ending, {}).phase == "running"


# --- the cluster's objects ------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImitatedCluster:
    """A cluster whose answers come without kubectl, and which schedules no Pod."""
    imitated = ImitatedCluster(tmp_path, schedules=False)
    imitated.add_claim()

    def call(_: Kubectl, verb: str, path: str, content: str = "") -> dict[str, Any]:
        method = {"get": "GET", "create": "POST", "delete": "DELETE"}[verb]
        code, answer = imitated.answer(method, path, content.encode())
        imitated.control()
        if code == 404:
            return {}
        if code >= 400:
            raise ConfigError(f"kubectl {verb} failed: {answer['message']}", "see above")
        return answer

    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/kubectl")
    monkeypatch.setattr(Kubectl, "_call", call)
    return imitated


def test_all_objects_of_a_run_are_made_or_none(cluster: ImitatedCluster):
    manager = KubernetesManager(config().cluster)
    nodes = manager.nodes()
    assert [(node.name, node.cpus, node.up) for node in nodes] == [("n1", 3, True), ("n2", 3, True)]
    made = objects()
    broken = copy.deepcopy(made.others[1])
    broken["spec"]["podSelektor"] = {}
    wrong = RunObjects(made.name, made.namespace, made.owner, (made.others[0], broken), made.order)
    with pytest.raises(ConfigError, match="podSelektor"):
        manager.launch(wrong)
    assert not cluster.of_kind("jobs") and not cluster.of_kind("secrets")
    assert manager.launch(made) == "earl-tictactoe"
    owned = [*cluster.of_kind("secrets").values(), *cluster.of_kind("services").values()]
    owners = {each["metadata"]["ownerReferences"][0]["name"] for each in owned}
    assert owners == {"earl-tictactoe-head"} and len(cluster.of_kind("jobs")) == 3
    with pytest.raises(ConfigError, match="has a run earl-tictactoe that has not ended"):
        manager.launch(made)
    statuses = manager.statuses(["earl-tictactoe", "trainer/0a1b"])
    assert statuses["trainer/0a1b"].phase == "ended"
    assert statuses["earl-tictactoe"] == JobStatus("queued", "", "Unschedulable: 0/0 nodes are available")
    manager.cancel(["earl-tictactoe", "trainer/0a1b"])
    kinds = ("jobs", "secrets", "services", "networkpolicies")
    assert not any(cluster.of_kind(kind) for kind in kinds)


def test_a_kind_that_the_cluster_does_not_know_is_named(cluster: ImitatedCluster):
    manager = KubernetesManager(config(cluster__kubernetes__gang="jobset").cluster)
    cluster.unknown = {"jobsets"}
    with pytest.raises(ConfigError, match="knows no JobSet"):
        manager.launch(objects(cluster__kubernetes__gang="jobset"))
    cluster.unknown = set()
    manager.launch(objects(cluster__kubernetes__gang="jobset"))
    assert manager.statuses(["earl-tictactoe"])["earl-tictactoe"].reason == "its Jobs are not made yet"
    manager.cancel(["earl-tictactoe"])
    assert not cluster.of_kind("jobsets") and not cluster.of_kind("secrets")


def test_a_claim_has_to_be_one_that_all_nodes_mount(cluster: ImitatedCluster):
    KubernetesManager(config().cluster).check_claim()
    with pytest.raises(ConfigError, match="there is no PersistentVolumeClaim other"):
        KubernetesManager(config(cluster__kubernetes__claim="other").cluster).check_claim()
    cluster.add_claim("other", "ReadWriteOnce")
    with pytest.raises(ConfigError, match="ReadWriteOnce: one node mounts it"):
        KubernetesManager(config(cluster__kubernetes__claim="other").cluster).check_claim()


def test_users_who_may_not_list_nodes_decide_devices_themselves(
    cluster: ImitatedCluster, monkeypatch: pytest.MonkeyPatch
):
    def refused(*_: object) -> dict[str, Any]:
        raise ConfigError("Error from server (Forbidden): nodes is forbidden", "ask")

    monkeypatch.setattr(Kubectl, "_call", refused)
    assert KubernetesManager(config().cluster).nodes() == [ANY_NODE]
