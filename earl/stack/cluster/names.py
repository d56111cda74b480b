"""Names of the places that `earl up --on` takes, and of variables of Pods."""

from __future__ import annotations

LOCAL = "local"
KUBERNETES = "kubernetes"
PLACES = (LOCAL, "slurm", "ray", KUBERNETES)
# Variables of Pods on Kubernetes: the order that they belong to, and the head's: where it places processes.
ORDER_VARIABLE, SLOTS_VARIABLE = "EARL_ORDER", "EARL_SLOTS"
