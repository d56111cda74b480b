"""Names of the places that `earl up --on` takes."""

from __future__ import annotations

LOCAL = "local"
PLACES = (LOCAL, "slurm", "ray")
