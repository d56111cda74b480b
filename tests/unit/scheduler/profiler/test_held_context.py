"""The longest context that a machine holds, and the KV of engines beside it, by the memory model."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from earl.stack.placement import place
from services.scheduler.memory.node import GIB, HOST_SHARE, host_plan, node_plan
from services.scheduler.profile.stages import held_tokens
from services.scheduler.profiler.device_defaults import within_devices
from services.scheduler.profiler.held_context import HeldContext, as_begun, held_by_division, held_context

SPEC = ModelSpec("llama", 256, 4, 8, 8, 32, 768, 512, max_positions=1 << 40)


def run(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"name": "t", "environment": {"name": "e"}, **sections})


def on_host(config: RunConfig, gib: float, spec: ModelSpec = SPEC) -> HeldContext:
    return held_context(config, spec, place(config, 0), 0, int(gib * GIB))


def on_gpus(config: RunConfig, gpus: int, gib: float) -> HeldContext:
    return held_context(config, SPEC, place(config, gpus), int(gib * GIB), 0)


@given(gib=st.floats(2, 500), ranks=st.sampled_from([1, 2, 4]), engines=st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_what_is_held_fits_and_little_more_would(gib: float, ranks: int, engines: int):
    config = run(trainer={"ranks": ranks}, rollout={"engines": engines}, scheduler={"selector": "static"})
    placement, host_bytes = place(config, 0), int(gib * GIB)
    decided, held = within_devices(config, SPEC, placement, 0, host_bytes)
    assert held is not None and decided.context_tokens == held.tokens > 256
    # The trainer packs as many tokens as this context has, where it would pack more.
    packed = min(16_384, held.tokens)
    for tokens, fits in ((held.tokens, True), (held.tokens * 1.02, False)):
        rollout = {"held_context_tokens": int(tokens), "kv_tokens": int(tokens)}
        trainer = {"microbatch_tokens": max(packed, int(tokens))}
        changed = decided.model_copy(
            update={
                "rollout": decided.rollout.model_copy(update=rollout),
                "trainer": decided.trainer.model_copy(update=trainer),
            }
        )
        plan = host_plan(changed, SPEC, placement, host_bytes)
        # Where little is left for it, KV beside what the run begins with bounds contexts a little earlier.
        if fits or "memory of this machine" in held.reason:
            assert (plan.device_total(0) <= HOST_SHARE * host_bytes) == fits
    # Engines hold one such context at least, and of all that is left what they can use.
    assert held.tokens <= decided.rollout.kv_tokens <= 64 * held.tokens
    assert re.match("memory of this machine: most of it for |the KV that fits beside weights", held.reason)
    longest = held_context(config, SPEC, placement, 0, host_bytes)
    assert 0.8 * longest.tokens < held.tokens <= longest.tokens


def test_positions_and_the_run_files_kv_bound_contexts_too():
    short = ModelSpec("llama", 256, 4, 8, 8, 32, 768, 512, max_positions=2048)
    assert on_host(run(), 64, short) == HeldContext(2048, "the model has 2,048 positions")
    given_kv = run(rollout={"kv_tokens": 4000})
    assert on_host(given_kv, 64) == HeldContext(4000, "rollout.kv_tokens = 4,000")
    # Too little memory for any run: the plan says what does not fit, and contexts end where they did.
    assert on_host(run(), 0.01).tokens == 256
    assert on_host(run(), 0.01, ModelSpec("llama", 256, 4, 8, 8, 32, 768, 512, max_positions=64)).tokens == 64


def test_with_a_selector_the_layout_that_holds_most_counts():
    devices = {"engines": 4, "kv_tokens": 1000}
    # An engine counts whole pages, of 32 tokens here.
    fixed = run(rollout=devices, scheduler={"selector": "static"})
    chosen = run(rollout=devices)
    assert (on_host(fixed, 64).tokens, on_host(chosen, 64).tokens) == (992, 4000)
    # The same by memory: on cards each rank has its own, and context parallelism splits a sequence.
    sections = {"trainer": {"ranks": 4}, "rollout": {"engines": 4, "engine": "vllm"}}
    fixed, chosen = run(**sections, scheduler={"selector": "static"}), run(**sections)
    assert on_gpus(chosen, 8, 24).tokens > 3 * on_gpus(fixed, 8, 24).tokens


def test_engines_begin_with_the_kv_that_the_widest_of_them_needs():
    config = run(rollout={"engines": 4}, trainer={"ranks": 4})
    decided, held = within_devices(config, SPEC, place(config, 0), 0, 16 * GIB)
    assert held is not None
    widest = held_tokens("rollout", decided, SPEC, Parallelism(1, 4))
    assert widest is not None and widest >= held.tokens
    # Nothing bounds the trainer's sequences but memory.
    assert held_tokens("trainer", decided, SPEC, Parallelism(4)) is None


def test_a_card_has_whole_contexts_in_all_of_the_torch_engines_slots():
    config = run(rollout={"max_sequences": 32}, scheduler={"selector": "static"})
    decided, held = within_devices(config, SPEC, place(config, 2), 24 * GIB)
    assert held is not None and decided.rollout.kv_tokens >= 32 * held.tokens
    plan = node_plan(decided, SPEC, place(config, 2), 24 * GIB)
    assert max(map(plan.device_total, range(2))) <= 0.9 * 24 * GIB
    paged = run(rollout={"max_sequences": 32, "engine": "vllm"}, scheduler={"selector": "static"})
    assert on_gpus(paged, 2, 24).tokens > held.tokens


@pytest.mark.parametrize("rollout", [{"max_context_tokens": 80}, {"held_context_tokens": 4000}])
def test_what_the_run_file_says_is_not_predicted(rollout: dict[str, int]):
    config = run(rollout=rollout)
    decided, held = within_devices(config, SPEC, place(config, 0), 0, 64 * GIB)
    assert held is None and decided.context_bound == config.context_bound
    # With a wish engines on the processor commit what they write, as before.
    assert bool(decided.rollout.kv_tokens) == ("held_context_tokens" in rollout)


def test_the_addresses_of_a_process_bound_contexts_too():
    many = run(rollout={"max_sequences": 8192}, scheduler={"selector": "static"})
    held = on_host(many, 1 << 20)
    assert held.reason == "8192 slots fill the addresses of an engine" and held.tokens < 1 << 20


def test_the_memory_of_paced_devices_bounds_contexts_too():
    sections = {"paced": {"table": "slow-link"}, "rollout": {"engines": 4}}
    fixed = run(**sections, scheduler={"selector": "static"})
    assert on_host(fixed, 64) == HeldContext(191, "the memory of the paced devices' table")
    # The table's replicas of four devices hold what this machine does.
    assert on_host(run(**sections), 64).reason.startswith("memory of this machine")


@given(
    gib=st.floats(48, 200),
    engine=st.sampled_from(["torch", "vllm"]),
    split=st.sampled_from([(4, 4), (2, 2), (1, 1)]),
    gpus=st.sampled_from([0, 8]),
)
@settings(max_examples=30, deadline=None)
def test_the_layout_that_the_run_begins_with_fits_too(
    gib: float, engine: str, split: tuple[int, int], gpus: int
):
    large = ModelSpec("llama", 2048, 24, 16, 8, 128, 8192, 32_000, max_positions=1 << 40)
    engines, ranks = split
    config = run(
        rollout={"engines": engines, "engine": engine if gpus else "torch"},
        trainer={"ranks": ranks, "activation_checkpointing": True},
        model={"dtype": "bfloat16"},
    )
    placement, device_bytes = place(config, gpus), int(gib * GIB)
    decided, held = within_devices(config, large, placement, device_bytes, 8 * device_bytes)
    assert held is not None and decided.context_tokens == held.tokens
    begun = as_begun(decided)
    if gpus:
        plan = node_plan(begun, large, placement, device_bytes)
        assert list(plan.faults()) == []
    else:
        assert host_plan(begun, large, placement, 8 * device_bytes).device_total(0) <= 8 * device_bytes
    # Its engines hold what they begin with, and some layout the longest.
    assert decided.rollout.kv_tokens >= decided.planned_context
    widest = held_tokens("rollout", decided, large, Parallelism(1, engines))
    assert widest is not None and widest >= held.tokens


def test_the_arena_that_the_reference_is_given_bounds_contexts_too():
    sections = {"trainer": {"kl_coefficient": 0.1}, "scheduler": {"batch_groups": 1, "group_size": 2}}
    given = run(**sections, reference={"arena_bytes": 1 << 20})
    assert on_host(given, 64) == HeldContext((1 << 20) // 8, "reference.arena_bytes = 1,048,576")
    assert on_host(run(**sections), 64).tokens > (1 << 20) // 8
    # One that nobody uses bounds nothing.
    assert on_host(run(reference={"arena_bytes": 1 << 20}), 64).tokens > (1 << 20) // 8


def test_in_a_pool_the_division_that_holds_most_counts():
    """KV of a device bounds contexts: replicas of four devices hold more than the two that rollout has."""
    sections = {
        "rollout": {"engines": 2, "kv_tokens": 1024},
        "trainer": {"ranks": 6},
        "stack": {"pool_devices": 8},
    }
    config = run(**sections, scheduler={"selector": "on", "profile": "p.csv"})
    placement = place(config, 0)
    assert held_context(config, SPEC, placement, 0, 64 * GIB).tokens == 2048
    divided, held = held_by_division(config, SPEC, placement, 0, 64 * GIB)
    assert held.tokens == 4096 and divided.config.rollout.engines == 4
    assert {name: len(slots) for name, slots in divided.placement.devices.items()} == {
        "rollout-0": 4, "trainer": 4,
    }  # fmt: skip
    decided, _ = within_devices(config, SPEC, placement, 0, 64 * GIB)
    assert decided.context_tokens == 4096 and decided.rollout.engines == 2, "it begins as its file says"
    alone = run(**sections, scheduler={"selector": "on"})
    kept, held = held_by_division(alone, SPEC, placement, 0, 64 * GIB)
    assert held.tokens == 1024 and kept.config is alone, "replicas stay without a profile"
