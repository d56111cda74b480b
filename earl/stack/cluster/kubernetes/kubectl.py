"""Calls of Kubernetes' API by `kubectl --raw`: it has the user's address, certificates and logins.

The paths are the API's own, so that no call has to ask what kinds of objects there are. Bodies go through
standard input: no argument has a secret.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlencode

from earl.errors import ConfigError, ServiceUnavailable
from earl.stack.cluster.manager import CALL_S

Verb = Literal["get", "create", "delete"]

# kubectl gives up before this process would end it.
REQUEST_S = CALL_S - 5.0
_UNREACHABLE = (
    *("unable to connect", "was refused", "connection refused", "no such host", "timed out", "timeout"),
    *("serviceunavailable", "i/o timeout", "eof", "connection reset", "internalerror"),
)


class Kubectl:
    """The cluster that kubectl of this machine reaches. A call that finds nothing returns {}."""

    def __init__(self) -> None:
        """Raises ConfigError where there is no kubectl."""
        if shutil.which("kubectl") is None:
            raise ConfigError(
                "--on kubernetes: kubectl is not on PATH",
                "call it where your cluster is reached, or make the objects with --dry-run",
            )

    def get(self, path: str, **query: str) -> dict[str, Any]:
        return self._call("get", with_query(path, query))

    def create(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Creates an object; fields that the cluster does not know are errors."""
        return self._call("create", with_query(path, {"fieldValidation": "Strict"}), json.dumps(content))

    def delete(self, path: str) -> None:
        """Deletes an object once all that it owns is gone; nothing where there is none."""
        self._call("delete", with_query(path, {"propagationPolicy": "Foreground"}))

    def _call(self, verb: Verb, path: str, content: str = "") -> dict[str, Any]:
        """Raises ConfigError for what the cluster refuses, ServiceUnavailable without an answer."""
        command = ["kubectl", verb, f"--request-timeout={REQUEST_S:g}s", "--raw", path]
        if content:
            command += ["--filename", "-"]
        try:
            done = subprocess.run(command, input=content, capture_output=True, text=True, timeout=CALL_S)
        except subprocess.TimeoutExpired:
            raise ServiceUnavailable(
                f"kubectl {verb} did not answer within {CALL_S:g} s", "see: kubectl cluster-info"
            ) from None
        if done.returncode == 0:
            return json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
        words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        if "(NotFound)" in words:
            return {}
        if any(sign in words.lower() for sign in _UNREACHABLE):
            raise ServiceUnavailable(f"Kubernetes does not answer: {words}", "see: kubectl cluster-info")
        raise ConfigError(
            f"kubectl {verb} failed: {words}", "correct [cluster.kubernetes], or ask whoever runs the cluster"
        )


def is_forbidden(error: ConfigError) -> bool:
    """Returns whether the cluster refused a call because this user may not make it."""
    return "(Forbidden)" in error.message


def path_of(namespace: str, kind: str, name: str = "") -> str:
    """The path of a kind's objects in a namespace, or of one of them. kind: plural, with its group.

    >>> path_of("default", "batch/v1/jobs", "x")
    '/apis/batch/v1/namespaces/default/jobs/x'
    """
    group, _, plural = kind.rpartition("/")
    root = "/api/v1" if group in ("", "v1") else f"/apis/{group}"
    return f"{root}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def with_query(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
