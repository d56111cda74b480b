"""Memory at 70B sizes: which layouts hold which contexts, by the memory model alone.

The model is the paper's, Qwen2.5-72B, and so is the device, one of 80 GiB. Engines keep the keys and values
of every response whole, each as long as the context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.paper.figure import PaperFigure
from benchmarks.paper.settings import PaperSettings
from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from services.scheduler.memory import predict

DEVICE_GIB = 80
DEVICE_BYTES = DEVICE_GIB << 30
# config.json of Qwen/Qwen2.5-72B.
MODEL = ModelSpec(
    family="qwen2",
    hidden=8192,
    layers=80,
    heads=64,
    kv_heads=8,
    head_dim=128,
    intermediate=29_568,
    vocab=152_064,
    qkv_bias=True,
    max_positions=131_072,
)
NODE_DEVICES = 8
TPS = (2, 4, 8)
RESPONSES = (8, 16, 32, 64, 128)
# The trainers on the paper's 128 devices: dp, tp, cp.
TRAINERS = ((128, 1, 1), (32, 4, 1), (16, 8, 1), (8, 8, 2), (4, 8, 4), (2, 8, 8))
TRAINED = 128
MOST_TOKENS = MODEL.max_positions
STEP_TOKENS = 256
COMPARES = (
    "The predicted use of memory of Qwen2.5-72B in bfloat16 on devices of 80 GiB, by the memory model "
    "that the selector uses; its predictions were compared with measured peaks on processors only (earl "
    "bench memory-model). rollout: engines of a node of 8 devices, split into 8 / tp replicas; "
    "longest_tokens: the longest context at which the node holds so many responses at once, each with all "
    "its keys and values, in steps of 256 tokens; 0 where the weights alone do not leave room. trainer: "
    "128 devices, one sequence in a micro-batch, with activation checkpointing. The claims are the "
    "paper's, at 8 devices: whether the model predicts the same."
)


def figure(settings: PaperSettings) -> PaperFigure:
    return PaperFigure("memory70b", {"device_gib": DEVICE_GIB}, measure, {})


def measure() -> dict[str, Any]:
    rollout = [
        {"tp": tp, "responses": responses, "longest_tokens": longest(rollout_fraction(tp, responses))}
        for tp in TPS
        for responses in RESPONSES
    ]
    trainer = [
        {
            "dp": dp,
            "tp": tp,
            "cp": cp,
            "longest_tokens": longest(trainer_fraction(dp, tp, cp)),
            "fraction_at_32768": round(trainer_fraction(dp, tp, cp)(32_768), 3),
        }
        for dp, tp, cp in TRAINERS
    ]
    checked = claims()
    return {
        "compares": COMPARES,
        "parameters": MODEL.parameters,
        "rollout": rollout,
        "trainer": trainer,
        "claims": checked,
        "claims_predicted": sum(claim["predicted"] for claim in checked),
    }


def rollout_fraction(tp: int, responses: int) -> Callable[[int], float]:
    """The share of a device that an engine takes, by the context in tokens. responses: on the whole node."""
    replicas = NODE_DEVICES // tp

    def fraction(context_tokens: int) -> float:
        slots = math.ceil(responses / replicas)
        config = run_config(rollout={"tp": tp, "max_context_tokens": context_tokens, "max_sequences": slots})
        layout = Parallelism(dp=replicas, tp=tp)
        return predict("rollout", config, MODEL, layout, context_tokens, responses).fraction(DEVICE_BYTES)

    return fraction


def trainer_fraction(dp: int, tp: int, cp: int) -> Callable[[int], float]:
    """The share of a device that a trainer's rank takes, by the context in tokens."""

    def fraction(context_tokens: int) -> float:
        trainer = {
            "microbatch_tokens": math.ceil(context_tokens / cp), "lr": 1e-6, "activation_checkpointing": True
        }  # fmt: skip
        layout = Parallelism(dp=dp, tp=tp, cp=cp)
        config = run_config(trainer=trainer)
        return predict("trainer", config, MODEL, layout, context_tokens, TRAINED).fraction(DEVICE_BYTES)

    return fraction


def run_config(**sections: Mapping[str, Any]) -> RunConfig:
    stage = {"device": "cuda", "dtype": "bfloat16"}
    made = {name: {**stage, **fields} for name, fields in sections.items()}
    return RunConfig.model_validate({"name": "m", "environment": {"name": "m"}, **made})


def longest(fraction: Callable[[int], float]) -> int:
    """The longest context up to the model's positions that fits, in whole STEP_TOKENS; 0 if none does."""
    least, most = 0, MOST_TOKENS // STEP_TOKENS
    while least < most:
        middle = (least + most + 1) // 2
        if fraction(middle * STEP_TOKENS) <= 1.0:
            least = middle
        else:
            most = middle - 1
    return least * STEP_TOKENS


def claims() -> list[dict[str, Any]]:
    """The paper's claims about memory, and whether the model predicts them."""

    def fits(tp: int, responses: int, context_tokens: int) -> bool:
        return rollout_fraction(tp, responses)(context_tokens) <= 1.0

    return [
        {
            "claim": "TP8 holds longer contexts than TP4, at every number of responses",
            "predicted": all(
                longest(rollout_fraction(8, responses)) >= longest(rollout_fraction(4, responses))
                for responses in RESPONSES
            ),
        },
        {
            "claim": "TP4 runs out of memory with 128 responses of 32K tokens",
            "predicted": not fits(4, 128, 32_768),
        },
        {
            "claim": "TP8 does not run out of memory with 128 responses of 32K tokens",
            "predicted": fits(8, 128, 32_768),
        },
        {
            "claim": "TP4 does not run out of memory with 128 responses of 16K tokens",
            "predicted": fits(4, 128, 16_384),
        },
        {
            "claim": "TP4 does not run out of memory with 64 responses of 32K tokens",
            "predicted": fits(4, 64, 32_768),
        },
    ]
