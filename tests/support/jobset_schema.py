"""The schema of a JobSet (jobset.x-k8s.io/v1alpha2), as far as EARL uses one; any other field is an error.

Written from the API's reference, https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/. The Jobs in it
are Kubernetes' own, and are validated as such.
"""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

LABELS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}}
NAME = {"type": "string", "pattern": r"^[a-z]([a-z0-9-]*[a-z0-9])?$", "maxLength": 40}


def table(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


JOBSET = Draft202012Validator(
    table(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
        kind={"const": "JobSet"},
        metadata=table(("name",), name=NAME, namespace=NAME, labels=LABELS),
        spec=table(
            ("replicatedJobs",),
            network=table(
                enableDNSHostnames={"type": "boolean"},
                publishNotReadyAddresses={"type": "boolean"},
                subdomain=NAME,
            ),
            successPolicy=table(
                ("operator",),
                operator={"enum": ["All", "Any"]},
                targetReplicatedJobs={"type": "array", "items": NAME},
            ),
            failurePolicy=table(maxRestarts={"type": "integer", "minimum": 0}),
            suspend={"type": "boolean"},
            ttlSecondsAfterFinished={"type": "integer", "minimum": 0},
            replicatedJobs={
                "type": "array",
                "minItems": 1,
                "items": table(
                    ("name", "template"),
                    name=NAME,
                    replicas={"type": "integer", "minimum": 1},
                    template=table(("spec",), metadata=table(labels=LABELS), spec={"type": "object"}),
                ),
            },
        ),
    )
)
