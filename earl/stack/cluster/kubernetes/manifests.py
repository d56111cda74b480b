"""A run's objects as text: a list of manifests, or a directory for kustomize with the secrets apart.

    DIR/kustomization.yaml      names what follows, and makes the Secret
    DIR/run.yaml                the objects, without a secret
    DIR/secrets/order.json      what the Secret holds, readable by this user alone

YAML is written here: of all that it can say, objects need little.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from earl.errors import ConfigError
from earl.stack.cluster.kubernetes.objects import HEAD, ORDER_FILE, KubernetesObject, RunObjects, labels

# A text that no reader of YAML takes for anything else; the others are quoted as in JSON, which is YAML.
_PLAIN = re.compile(r"(?!(?:true|false|yes|no|on|off|null|y|n)$)[A-Za-z/][A-Za-z0-9_./-]*", re.IGNORECASE)


def manifest_list(run: RunObjects) -> str:
    """All objects of a run, its Secret among them, as `kubectl apply --filename -` takes them."""
    return documents([run.secret, *run.public])


def write_directory(run: RunObjects, directory: Path) -> None:
    """Writes the directory for `kubectl apply --kustomize`. Raises ConfigError for one that is not empty."""
    secrets = directory / "secrets"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ConfigError(f"{directory} is not empty", "name another directory, or remove it")
        secrets.mkdir(mode=0o700)
        with open(os.open(secrets / ORDER_FILE, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(run.order)
        (directory / "run.yaml").write_text(documents(run.public))
        (directory / "kustomization.yaml").write_text(documents([_kustomization(run)]))
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be written: {str(error.strerror).lower()}", "name another directory"
        ) from None


def documents(objects: Sequence[KubernetesObject]) -> str:
    return "---\n".join("\n".join(_lines(each)) + "\n" for each in objects)


def _kustomization(run: RunObjects) -> KubernetesObject:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": run.namespace,
        "resources": ["run.yaml"],
        "secretGenerator": [
            {
                "name": run.name,
                "files": [f"secrets/{ORDER_FILE}"],
                # The Jobs name it, and a Job's template cannot be changed.
                "options": {"disableNameSuffixHash": True, "labels": labels(run.name, HEAD)},
            }
        ],
    }


def _lines(value: Any) -> Iterator[str]:
    """Lines of a mapping or a sequence in YAML's block style, without the indentation of what holds it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _entry(f"{_scalar(str(key))}:", inner)
    else:
        for inner in value:
            first, *rest = list(_lines(inner)) if _is_block(inner) else [_scalar(inner)]
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _entry(key: str, value: Any) -> Iterator[str]:
    if _is_block(value):
        yield key
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _is_block(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value)
