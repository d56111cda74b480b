"""An imitation of a Kubernetes cluster, for kubectl and `earl up --on kubernetes`: no Kubernetes is in it.

    kubectl ──HTTP──► ImitatedCluster ──► objects, each checked against Kubernetes' own schema when it is made
                            │
                            └─► a Pod's process for each index of a Job, on this machine

A Pod is its container's command, with the variables that its template gives it and no others. It sees this
machine's files: the claim is a directory of this machine, mounted at its own path, and secrets lie in files.
A JobSet is stored, and makes no Jobs. There is no scheduler, no image, no network policy, no name service and
no limit of resources. Ownership, the end of Jobs and Pods that are made again follow Kubernetes' pages.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import kubernetes_validate
import psutil
from jsonschema import ValidationError

from earl.stack.cluster.kubernetes.objects import ORDER_DIRECTORY
from tests.support.jobset_schema import JOBSET
from tests.support.needs import program
from tests.support.paths import ROOT

Object = dict[str, Any]
SCHEMAS = "1.37"
PATH = re.compile(r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<kind>[a-z]+)")
STEP_S = 0.1
INDEX = "batch.kubernetes.io/job-completion-index"


class ImitatedPod:
    """One Pod of a Job: a process of this machine, in a session of its own."""

    def __init__(self, cluster: ImitatedCluster, job: Object, index: int, node: str) -> None:
        template = job["spec"]["template"]
        self.job, self.index, self.node = job["metadata"]["name"], index, node
        name = f"{self.job}-{index}-{uuid.uuid4().hex[:5]}"
        self.metadata = {
            "name": name,
            "labels": template["metadata"]["labels"],
            "creationTimestamp": f"{time.time():020.6f}",
            "annotations": {INDEX: str(index)},
        }
        self.phase = "Pending"
        self.process: subprocess.Popen[bytes] | None = None
        if node:
            self.process = self._started(cluster, template["spec"])
            self.phase = "Running"

    def _started(self, cluster: ImitatedCluster, spec: Object) -> subprocess.Popen[bytes]:
        [container] = spec["containers"]
        variables = {"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONPATH": str(ROOT)}
        fields = {
            "metadata.name": self.metadata["name"],
            "spec.nodeName": self.node,
            "status.podIP": cluster.address,
            f"metadata.annotations['{INDEX}']": str(self.index),
        }
        for entry in container.get("env", []):
            source = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            variables[entry["name"]] = fields[source] if source else entry["value"]
        words = [
            re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word) for word in container["args"]
        ]
        for volume in spec["volumes"]:
            if "secret" in volume:
                files = cluster.secret_files(volume["secret"]["secretName"])
                words = [word.replace(ORDER_DIRECTORY, str(files)) for word in words]
        if words[0] == "python":
            words[0] = sys.executable
        with open(cluster.directory / f"{self.metadata['name']}.log", "ab") as log:
            return subprocess.Popen(
                words, env=variables, cwd="/tmp", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    @property
    def as_object(self) -> Object:
        scheduled: Object = {"type": "PodScheduled", "status": "True"}
        if not self.node:
            words = {"reason": "Unschedulable", "message": "0/0 nodes are available"}
            scheduled = {"type": "PodScheduled", "status": "False", **words}
        status = {"phase": self.phase, "conditions": [scheduled]}
        return {"metadata": self.metadata, "spec": {"nodeName": self.node}, "status": status}

    def descendants(self) -> list[psutil.Process]:
        if self.process is None or self.process.poll() is not None:
            return []
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]


class ImitatedCluster:
    """A namespace "default" and one claim, `directory / "shared"`. address: the Pods', of this machine."""

    def __init__(self, directory: Path, address: str = "127.0.0.1", *, schedules: bool = True) -> None:
        self.directory, self.address = directory, address
        self.claim = directory / "shared"
        self.schedules = schedules
        self.unknown: set[str] = set()
        self.objects: dict[tuple[str, str], Object] = {}
        self.pods: list[ImitatedPod] = []
        self.requests: list[str] = []
        self._lock = threading.RLock()
        self._over = threading.Event()

    def __enter__(self) -> ImitatedCluster:
        program("kubectl", "kubernetes-client")
        self.claim.mkdir(parents=True)
        self.add_claim()
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                code, content = cluster.answer(self.command, self.path, self._content())
                data = json.dumps(content).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _content(self) -> bytes:
                """kubectl sends what it reads from standard input in chunks."""
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                content = b""
                while size := int(self.rfile.readline(), 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return content

            do_GET = do_POST = do_DELETE = _answer

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        where = f"http://127.0.0.1:{self._server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "imitated",
            "clusters": [{"name": "imitated", "cluster": {"server": where}}],
            "contexts": [{"name": "imitated", "context": {"cluster": "imitated", "user": ""}}],
        }
        (self.directory / "kubeconfig").write_text(json.dumps(config))
        self.environment = {**os.environ, "KUBECONFIG": str(self.directory / "kubeconfig")}
        self._threads = [
            threading.Thread(target=self._server.serve_forever, daemon=True),
            threading.Thread(target=self._control, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        for thread in self._threads:
            thread.join(60)
        with self._lock:
            for pod in self.pods:
                self.kill(pod)

    def add_claim(self, name: str = "runs", mode: str = "ReadWriteMany") -> None:
        claim = {"metadata": {"name": name}, "spec": {"accessModes": [mode]}}
        self.objects["persistentvolumeclaims", name] = claim

    def kill(self, pod: ImitatedPod) -> None:
        """Ends a Pod's processes as if its node's power were cut."""
        for process in reversed(pod.descendants()):
            process.kill()
        if pod.process is not None:
            pod.process.wait(60)

    def lose(self, component: str) -> str:
        """Loses the node of a Pod that runs. Returns the Pod's name; its Job makes another."""
        with self._lock:
            pod = next(pod for pod in self.running() if component in pod.job)
            self.kill(pod)
        return pod.metadata["name"]

    def running(self) -> list[ImitatedPod]:
        with self._lock:
            return [pod for pod in self.pods if pod.phase == "Running"]

    def of_kind(self, kind: str) -> dict[str, Object]:
        with self._lock:
            return {name: given for (plural, name), given in self.objects.items() if plural == kind}

    def secret_files(self, name: str) -> Path:
        directory = self.directory / "secrets" / name
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in self.objects["secrets", name]["stringData"].items():
            (directory / file).write_text(text)
        return directory

    # --- the API -----------------------------------------------------------------------------

    def answer(self, method: str, target: str, content: bytes) -> tuple[int, Object]:
        url = urlparse(target)
        with self._lock:
            self.requests.append(f"{method} {url.path}")
            if url.path == "/api/v1/nodes":
                return 200, {"items": [node("n1"), node("n2")]}
            match = PATH.match(url.path)
            if match is None or match["namespace"] != "default" or match["kind"] in self.unknown:
                return 404, failure(404, "NotFound", f"no {url.path}")
            kind, name = match["kind"], url.path[match.end() + 1 :]
            if method == "POST":
                return self._create(kind, json.loads(content))
            if method == "DELETE":
                return self._delete(kind, name)
            if name:
                there = self.objects.get((kind, name))
                return (200, there) if there else (404, failure(404, "NotFound", f"{kind} {name} not found"))
            labels = dict(pair.split("=") for pair in parse_qs(url.query)["labelSelector"])
            listed = [pod.as_object for pod in self.pods] if kind == "pods" else self.of_kind(kind).values()
            return 200, {"items": [each for each in listed if labels.items() <= labels_of(each).items()]}

    def _create(self, kind: str, given: Object) -> tuple[int, Object]:
        name = given["metadata"]["name"]
        if (kind, name) in self.objects:
            return 409, failure(409, "AlreadyExists", f"{kind} {name} already exists")
        try:
            if kind == "jobsets":
                JOBSET.validate(given)
            else:
                kubernetes_validate.validate(given, SCHEMAS, strict=True)
        except ValidationError as error:
            return 422, failure(422, "Invalid", error.message)
        made = copy.deepcopy(given)
        made["metadata"]["uid"] = str(uuid.uuid4())
        self.objects[kind, name] = made
        return 201, made

    def _delete(self, kind: str, name: str) -> tuple[int, Object]:
        there = self.objects.get((kind, name))
        if there is None:
            return 404, failure(404, "NotFound", f"{kind} {name} not found")
        if kind == "jobs":
            there["metadata"]["deletionTimestamp"] = "now"
        else:
            del self.objects[kind, name]
        return 200, there

    # --- the Jobs ----------------------------------------------------------------------------

    def _control(self) -> None:
        while not self._over.wait(STEP_S):
            self.control()

    def control(self) -> None:
        """One round of the controllers: Pods for Jobs, and the ends of both."""
        with self._lock:
            for name, job in list(self.of_kind("jobs").items()):
                self._follow_job(name, job)

    def _follow_job(self, name: str, job: Object) -> None:
        pods = [pod for pod in self.pods if pod.job == name]
        for pod in pods:
            code = pod.process.poll() if pod.process is not None else None
            if pod.phase == "Running" and code is not None:
                pod.phase = "Failed" if code else "Succeeded"
        if job["metadata"].get("deletionTimestamp"):
            self._end_pods(name, job, pods)
            return
        if is_finished(job):
            return
        spec = job["spec"]
        done = {pod.index for pod in pods if pod.phase == "Succeeded"}
        failed = sum(pod.phase == "Failed" for pod in pods)
        if failed > spec["backoffLimit"]:
            conclude(job, "Failed", "BackoffLimitExceeded")
        elif len(done) == spec.get("completions", 1):
            conclude(job, "Complete", "CompletionsReached")
        else:
            alive = {pod.index for pod in pods if pod.phase in ("Pending", "Running")}
            for index in set(range(spec.get("completions", 1))) - done - alive:
                if self._has_secrets(spec["template"]["spec"]):
                    self.pods.append(ImitatedPod(self, job, index, "n1" if self.schedules else ""))

    def _has_secrets(self, spec: Object) -> bool:
        named = [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume]
        return all(("secrets", name) in self.objects for name in named)

    def _end_pods(self, name: str, job: Object, pods: list[ImitatedPod]) -> None:
        """SIGTERM to the Pods of a Job that is deleted, SIGKILL after their time; then what it owned goes."""
        began = job["metadata"].setdefault("ends", time.monotonic())
        grace_s = job["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
        alive = [pod for pod in pods if pod.phase == "Running"]
        for pod in alive:
            assert pod.process is not None
            if time.monotonic() - began > grace_s:
                self.kill(pod)
            elif pod.metadata["name"] not in job["metadata"].setdefault("told", []):
                job["metadata"]["told"].append(pod.metadata["name"])
                pod.process.send_signal(signal.SIGTERM)
        if alive:
            return
        self.pods = [pod for pod in self.pods if pod.job != name]
        del self.objects["jobs", name]
        for kind, other in list(self.owned_by(job["metadata"]["uid"])):
            self._delete(kind, other)

    def owned_by(self, uid: str) -> Iterator[tuple[str, str]]:
        for key, given in self.objects.items():
            owners = given["metadata"].get("ownerReferences", [])
            if any(owner["uid"] == uid for owner in owners):
                yield key


def node(name: str) -> Object:
    """A node of 4 cores and 16 GiB."""
    return {
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "allocatable": {"cpu": "3920m", "memory": "16Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def labels_of(given: Mapping[str, Any]) -> dict[str, str]:
    return given["metadata"].get("labels", {})


def failure(code: int, reason: str, message: str) -> Object:
    """A Status, with which Kubernetes answers what it refuses."""
    words = {"reason": reason, "message": message, "code": code}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", **words}


def is_finished(job: Object) -> bool:
    return bool(job.get("status", {}).get("conditions"))


def conclude(job: Object, kind: str, reason: str) -> None:
    job["status"] = {"conditions": [{"type": kind, "status": "True", "reason": reason}]}
