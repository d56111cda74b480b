"""Prints what a profile of a run would measure and what it could decide, for `earl explain`.

`python -m services.scheduler.profiler.outlook`.

The run's directory on standard input; {"facts", "error"} as one line of JSON on standard output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from earl.config.run import RunConfig
from earl.errors import EarlError
from earl.models.spec import ModelSpec, load_spec
from earl.obs.limits import host_bytes
from earl.obs.machine import computes_on_gpu
from earl.parallelism import STAGES, Parallelism
from services.scheduler.memory.model import predict, ranks_here
from services.scheduler.profile.stages import largest, parallelisms
from services.scheduler.profiler.short import short_profiles


def outlook(
    config: RunConfig, spec: ModelSpec, memory_bytes: int, kept: Path | None = None
) -> dict[str, dict[str, Any]]:
    """The layouts of each stage that has several, by the stage's name.

    layouts: all that the stage can start in. lacking: those that were not measured, and predicted_s: how long
    a short profile of them would take. excluded: memory that the longest sequences at the largest load would
    take, as a share of what a rank has, where that is more than all of it; empty for a stage that computes on
    GPUs. memory_bytes: of the machine. kept: as of `lacking`.
    """
    missing = {short.stage: short for short in short_profiles(config, spec, kept)}
    stages = {}
    for stage in STAGES:
        layouts = parallelisms(stage, config, spec)
        if len(layouts) < 2 or (stage == "reference" and not config.trainer.kl_coefficient):
            continue
        short = missing.get(stage)
        shares = {str(layout): _share(stage, config, spec, layout, memory_bytes) for layout in layouts}
        stages[stage] = {
            "layouts": list(map(str, layouts)),
            "lacking": list(map(str, short.layouts)) if short is not None else [],
            "predicted_s": short.seconds if short is not None else 0.0,
            "excluded": {layout: share for layout, share in shares.items() if share > 1.0},
        }
    return stages


def _share(stage: str, config: RunConfig, spec: ModelSpec, layout: Parallelism, memory_bytes: int) -> float:
    """The share of a rank's memory that the layout takes at the run's longest context; 0 if unknown."""
    if computes_on_gpu(getattr(config, stage).device):
        return 0.0
    longest = min(config.planned_context, spec.max_positions)
    taken = predict(stage, config, spec, layout, longest, largest(stage, config), device="cpu")
    return taken.fraction(max(1, memory_bytes // ranks_here(config)))


def main() -> None:
    directory = Path(sys.stdin.read())
    facts: dict[str, Any] = {}
    error = None
    try:
        config = RunConfig.model_validate_json((directory / "run.json").read_bytes())
        stages = outlook(config, load_spec(directory / "model"), host_bytes())
        facts = {"stages": stages, "profile_s": config.scheduler.profile_s}
    except EarlError as reason:
        error = {"message": reason.message, "remedy": reason.remedy}
    except (OSError, ValueError):
        error = {
            "message": "its run.json is of another version",
            "remedy": "use the version that made the run",
        }
    sys.stdout.write(json.dumps({"facts": facts, "error": error}) + "\n")


if __name__ == "__main__":
    main()
