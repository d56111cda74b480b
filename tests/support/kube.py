"""Objects of deploy/k8s as pods that `podman play kube` runs on this machine.

podman knows pods, config maps and claims; what a cluster's controllers make of Deployments, StatefulSets and
Jobs is done here: one pod each, its name and ordinal filled in, every service's name resolved. Secrets and
scratch directories become directories of this machine, because podman 4.3 neither keeps the mode of secrets
nor has a tmpfs for a pod. Everything else is the object's own: arguments, settings, security contexts.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from tests.support import containers
from tests.support.containers import podman
from tests.support.kustomize import Object, pod_spec

NAMESPACE = "earl.svc"


class Cluster:
    """A network of its own and the pods on it. secrets: their directory; scratch: one to write to."""

    def __init__(
        self, objects: list[Object], network: str, subnet: str, secrets: Path, scratch: Path
    ) -> None:
        self._network = network
        self._subnet = subnet
        self.secrets = secrets
        self._scratch = scratch
        self._maps = [one for one in objects if one["kind"] == "ConfigMap"]
        self._makers = {one["metadata"]["name"]: one for one in objects if pod_spec(one) is not None}
        self.address = {name: f"{subnet}.{10 + number}" for number, name in enumerate(sorted(self._makers))}
        self._files: list[Path] = []

    def pod_name(self, name: str) -> str:
        return f"{name}-0" if self._makers[name]["kind"] == "StatefulSet" else name

    def create(self) -> None:
        podman("network", "create", "--subnet", f"{self._subnet}.0/24", self._network)

    def start(self, name: str) -> None:
        """The pod that this object makes."""
        file = self._scratch / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all([*self._maps, self._pod(name)]))
        podman("play", "kube", "--network", self._network, "--ip", self.address[name], str(file))
        self._files.append(file)

    def container(self, name: str) -> str:
        return (
            f"{self.pod_name(name)}-{self._makers[name]['spec']['template']['spec']['containers'][0]['name']}"
        )

    def down(self) -> None:
        """Ends every pod as it was started; the network and the claims go with them."""
        for file in reversed(self._files):
            podman("play", "kube", "--down", str(file), check=False)
        podman("network", "rm", "--force", self._network, check=False)
        for volume in (self._claim("run"), self._claim("valkey-data"), "run", "valkey"):
            podman("volume", "rm", "--force", volume, check=False)

    def _claim(self, name: str) -> str:
        return f"{self._network}-{name}"

    def _aliases(self) -> list[Object]:
        found = []
        for name, address in self.address.items():
            names = [f"{name}.{NAMESPACE}", f"{self.pod_name(name)}.{name}.{NAMESPACE}"]
            found.append({"ip": address, "hostnames": names})
        return found

    def _pod(self, name: str) -> Object:
        maker = copy.deepcopy(self._makers[name])
        template = maker["spec"]["template"]
        spec, pod = template["spec"], self.pod_name(name)
        spec["hostAliases"] = self._aliases()
        spec["restartPolicy"] = "OnFailure"
        for claim in maker["spec"].get("volumeClaimTemplates", []):
            held = f"{name}-{claim['metadata']['name']}"
            spec["volumes"].append(
                {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": held}}
            )
        for volume in spec["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                # podman keeps config maps and claims as volumes of one name space.
                claim["claimName"] = self._claim(claim["claimName"])
            elif volume.pop("secret", None):
                volume["hostPath"] = {"path": str(self.secrets), "type": "Directory"}
            elif volume.pop("emptyDir", None) is not None:
                volume["hostPath"] = {"path": str(self._directory(pod, volume["name"])), "type": "Directory"}
        for container in spec["containers"]:
            container["image"] = containers.IMAGE
            container.pop("ports", None)  # podman would publish them
            for variable in container.get("env", []):
                source = variable.pop("valueFrom", None)
                if source is not None:
                    field = source["fieldRef"]["fieldPath"]
                    variable["value"] = pod if field == "metadata.name" else "0"
                variable["value"] = variable["value"].replace("$(POD_NAME)", pod)
            if "args" in container:
                container["args"] = [one.replace("$(POD_NAME)", pod) for one in container["args"]]
        labels = template["metadata"]["labels"]
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "labels": labels}, "spec": spec
        }  # fmt: skip

    def _directory(self, pod: str, volume: str) -> Path:
        directory = self._scratch / pod / volume
        directory.mkdir(parents=True)
        directory.chmod(0o1777)
        return directory


def pods() -> list[dict[str, Any]]:
    """Returns what `podman pod ps` lists."""
    return yaml.safe_load(podman("pod", "ps", "--format", "json") or "[]") or []
