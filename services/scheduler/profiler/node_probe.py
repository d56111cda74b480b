"""Predicts what a run takes of a machine's devices: `python -m services.scheduler.profiler.node_probe`.

{"run": RunConfig, "gpus": n, "device_bytes": of each, or of the machine without GPUs, "host_bytes": of the
machine, 0 if they are unknown} as JSON on standard input; {"facts", "error"} as one line of JSON on standard
output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from earl.config.packaged import packaged
from earl.config.run import RunConfig
from earl.errors import ConfigError, EarlError
from earl.models.source import resolve
from earl.models.spec import ModelSpec, load_spec, spec_of_scratch, spec_of_shape
from earl.stack.placement import place
from services.scheduler.memory.node import NodePlan, node_plan
from services.scheduler.profiler.device_defaults import within_devices
from services.scheduler.profiler.held_context import as_begun


def planned_spec(config: RunConfig) -> ModelSpec:
    """The run's model: of its directory, of model.shape where that is not here, or from scratch.

    Raises ModelNotFound, UnsupportedModel, and ConfigError where directory and model.shape differ.
    """
    model = config.model
    if not model.path:
        return spec_of_scratch(model.scratch)
    if model.shape is None:
        return load_spec(resolve(model.path))
    shape = spec_of_shape(model.shape)
    if packaged(model.path) is None and not Path(model.path).expanduser().is_dir():
        return shape
    spec = load_spec(resolve(model.path))
    if spec.shapes() != shape.shapes():
        raise ConfigError(
            f"model.shape has {shape.parameters:,} parameters, and {model.path} has {spec.parameters:,}: "
            "they are not one model",
            "copy the sizes from its config.json, or remove model.shape",
        )
    return spec


def with_teacher_here(config: RunConfig) -> RunConfig:
    """The configuration with the teacher's directory in place of its package. Raises ModelNotFound."""
    path = config.teacher.path
    if packaged(path) is None:
        return config
    return config.model_copy(
        update={"teacher": config.teacher.model_copy(update={"path": str(resolve(path))})}
    )


def facts_of(plan: NodePlan, lines: list[str]) -> dict[str, Any]:
    uses = [
        {
            "process": use.process,
            "devices": list(use.numbers),
            "ranks": use.ranks,
            "moment": use.parts.moment,
            "bytes": use.total_bytes,
            "parts": use.part_bytes(),
        }
        for use in plan.uses
    ]
    return {
        "gpus": plan.gpus,
        "device_bytes": plan.device_bytes,
        "placement": lines,
        "uses": uses,
        "most_bytes": max((plan.device_total(number) for number in range(plan.gpus or 1)), default=0),
        "slots_bytes": plan.slots_bytes,
        "turns": [
            {"stage": turn, "bytes": max(plan.turn_total(number, turn) for number in range(plan.gpus or 1))}
            for turn in plan.turns
            if turn
        ],
        "faults": [{"message": message, "remedy": remedy} for message, remedy in plan.faults()],
    }


def main() -> None:
    result: dict[str, Any] = {"facts": {}, "error": None}
    given = json.loads(sys.stdin.read())
    try:
        config = with_teacher_here(RunConfig.model_validate(given["run"]))
        placement = place(config, given["gpus"])
        spec, device_bytes = planned_spec(config), given["device_bytes"]
        host_bytes = given.get("host_bytes", 0)
        decided, held = within_devices(config, spec, placement, device_bytes, host_bytes)
        plan = node_plan(as_begun(decided), spec, placement, device_bytes)
        result["facts"] = facts_of(plan, list(placement.lines())) | {
            "kv_tokens": decided.rollout.kv_tokens,
            "context_tokens": decided.longest_sequence,
            "context_reason": held.reason if held is not None else decided.context_bound.source,
            "held_context_tokens": decided.rollout.held_context_tokens,
            "activation_checkpointing": decided.trainer.checkpoints_activations,
            "checkpointing_is_auto": config.trainer.activation_checkpointing == "auto",
        }
    except EarlError as error:
        result["error"] = {"message": error.message, "remedy": error.remedy}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
