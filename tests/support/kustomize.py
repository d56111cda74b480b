"""The part of kustomize that the files below deploy/k8s use, so that they can be rendered without it.

resources (files and directories), namespace, labels, configMapGenerator and secretGenerator of files, images,
patches in JSON 6902 form. Names get no hash. Anything else in a kustomization.yaml is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
KNOWN = {
    *("apiVersion", "kind", "namespace", "labels", "resources"),
    *("configMapGenerator", "secretGenerator", "images", "patches"),
}
CLUSTER_WIDE = {"Namespace"}


def render(directory: Path, secret: Callable[[str], bytes]) -> list[Object]:
    """The objects of a base or overlay. secret: what a file holds that secrets are made of, by its name."""
    told = yaml.safe_load((directory / "kustomization.yaml").read_text())
    unknown = set(told) - KNOWN
    assert not unknown, f"{directory}: this renderer does not know {unknown}"
    found: list[Object] = []
    for resource in told.get("resources", []):
        path = directory / resource
        assert path.exists(), path
        found += render(path, secret) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for made in told.get("configMapGenerator", []):
        texts = {Path(name).name: (directory / name).read_text() for name in made["files"]}
        found.append(_object("ConfigMap", made["name"], data=texts))
    for made in told.get("secretGenerator", []):
        encoded = {
            Path(name).name: base64.b64encode(secret(Path(name).name)).decode() for name in made["files"]
        }
        found.append(_object("Secret", made["name"], data=encoded, type="Opaque"))
    for one in found:
        if one["kind"] not in CLUSTER_WIDE and "namespace" in told:
            one["metadata"]["namespace"] = told["namespace"]
        for labels in told.get("labels", []):
            one["metadata"].setdefault("labels", {}).update(labels["pairs"])
        for container in _containers(one):
            for image in told.get("images", []):
                if container["image"].rpartition(":")[0] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    for patch in told.get("patches", []):
        wanted = patch["target"]
        hit = [o for o in found if (o["kind"], o["metadata"]["name"]) == (wanted["kind"], wanted["name"])]
        assert len(hit) == 1, f"{directory}: {wanted} names {len(hit)} objects"
        for operation in yaml.safe_load(patch["patch"]):
            _apply(hit[0], operation)
    return found


def pod_spec(one: Object) -> Object | None:
    """The pod specification of an object that makes pods."""
    spec = one.get("spec") or {}
    return spec.get("template", {}).get("spec")


def _object(kind: str, name: str, **fields: Any) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def _containers(one: Object) -> list[Object]:
    spec = pod_spec(one) or {}
    return [*spec.get("initContainers", []), *spec.get("containers", [])]


def _apply(one: Any, operation: Object) -> None:
    """JSON 6902: add and replace."""
    *above, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"][1:].split("/")]
    for part in above:
        one = one[int(part)] if isinstance(one, list) else one[part]
    assert operation["op"] in ("add", "replace"), operation
    key: Any = int(last) if isinstance(one, list) else last
    if operation["op"] == "replace":
        assert one[key] is not None, operation
    one[key] = operation["value"]
