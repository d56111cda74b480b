"""Objects of deploy/k8s as pods that `podman play kube` runs on this machine.

podman knows pods, config maps and claims; what a cluster's controllers make of Deployments, StatefulSets and
Jobs is done here: one pod each, its name and ordinal filled in, every service's name resolved. A pod of an
Indexed Job has its domain in its host name, for podman gives it none. Secrets and
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
        maker = self._makers[name]
        return f"{name}-0" if maker["kind"] == "StatefulSet" or is_indexed(maker) else name

    def claim(self, name: str) -> str:
        """podman's volume for a claim."""
        return self._claim(name)

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
        for volume in (*map(self._claim, ("run", "runs", "valkey-data")), "run", "valkey"):
            podman("volume", "rm", "--force", volume, check=False)

    def _claim(self, name: str) -> str:
        return f"{self._network}-{name}"

    def _aliases(self) -> list[Object]:
        found = []
        for name, address in self.address.items():
            names = [f"{name}.{NAMESPACE}", f"{self.pod_name(name)}.{name}.{NAMESPACE}"]
            if is_indexed(self._makers[name]):
                names = [host_name(self._makers[name], self.pod_name(name)), self.pod_name(name)]
            found.append({"ip": address, "hostnames": names})
        return found

    def _pod(self, name: str) -> Object:
        maker = copy.deepcopy(self._makers[name])
        template = maker["spec"]["template"]
        spec, pod = template["spec"], self.pod_name(name)
        spec["hostAliases"] = self._aliases()
        spec["restartPolicy"] = "OnFailure"
        if is_indexed(maker):
            spec["hostname"] = host_name(maker, pod)
        fields = {"metadata.name": pod, "status.podIP": self.address[name], "spec.nodeName": "podman"}
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
                    variable["value"] = fields.get(source["fieldRef"]["fieldPath"], "0")
                variable["value"] = variable["value"].replace("$(POD_NAME)", pod)
            values = {variable["name"]: variable["value"] for variable in container.get("env", [])}
            if "args" in container:
                container["args"] = [filled(one, values) for one in container["args"]]
        labels = template["metadata"]["labels"]
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "labels": labels}, "spec": spec
        }  # fmt: skip

    def _directory(self, pod: str, volume: str) -> Path:
        directory = self._scratch / pod / volume
        directory.mkdir(parents=True)
        directory.chmod(0o1777)
        return directory


def is_indexed(maker: Object) -> bool:
    return maker["spec"].get("completionMode") == "Indexed"


def host_name(maker: Object, pod: str) -> str:
    """The name by which a cluster's name service knows the first pod of an Indexed Job."""
    domain = maker["spec"]["template"]["spec"]["subdomain"]
    return f"{pod}.{domain}.{maker['metadata']['namespace']}.svc.cluster.local"


def filled(argument: str, values: dict[str, str]) -> str:
    """An argument of a container with its variables in place of $(NAME)."""
    for name, value in values.items():
        argument = argument.replace(f"$({name})", value)
    return argument


def pods() -> list[dict[str, Any]]:
    """Returns what `podman pod ps` lists."""
    return yaml.safe_load(podman("pod", "ps", "--format", "json") or "[]") or []
