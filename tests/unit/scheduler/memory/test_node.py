"""A run's memory on a machine's devices: the sum of its processes there, and what is too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError, ModelNotFound
from earl.models.create import write_scratch
from earl.models.spec import load_spec, spec_of_scratch, spec_of_shape
from earl.stack.placement import place
from services.scheduler.memory.node import CONTEXT_BYTES, GIB, NodePlan, kv_tokens_within, node_plan
from services.scheduler.profiler.node_probe import planned_spec

EXAMPLES = Path(__file__).parents[4] / "examples"
LARGE, SHARED = EXAMPLES / "qwen3_8b_8gpu.toml", EXAMPLES / "qwen2_1b5_1gpu.toml"


def planned(config: RunConfig, gpus: int, gib: float) -> NodePlan:
    return node_plan(config, planned_spec(config), place(config, gpus), int(gib * GIB))


def kv_tokens(config: RunConfig, gpus: int, gib: float) -> int:
    return kv_tokens_within(config, planned_spec(config), place(config, gpus), int(gib * GIB))


def large(**rollout: Any) -> RunConfig:
    """The example of eight GPUs, with 36 GiB of KV in each engine."""
    return changed(LARGE, rollout={"kv_tokens": 262144, **rollout})


def changed(file: Path, **sections: dict[str, Any]) -> RunConfig:
    config = load_run(file, elsewhere=True)
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=keys) for name, keys in sections.items()}
    )


def test_the_examples_fit_the_machines_that_they_name():
    plan = planned(large(), 8, 80)
    assert not list(plan.faults())
    assert [(use.process, use.numbers) for use in plan.uses] == [
        ("trainer", (0, 1, 2, 3)),
        ("rollout-0", (4, 5, 6, 7)),
    ]
    # 8.19e9 parameters: in float32 with two moments over four ranks; in bfloat16 in each engine.
    trainer, engine = plan.uses
    assert trainer.parts.optimizer == pytest.approx(8 * 8.19e9 / 4, rel=0.01)
    assert engine.parts.weights == pytest.approx(2 * 8.19e9, rel=0.01)
    assert engine.parts.kv == 262144 * 36 * 2 * 8 * 128 * 2
    # Two published versions, and one that each of four engines reads.
    assert plan.slots_bytes == pytest.approx(6 * 2 * 8.19e9, rel=0.01)
    config = load_run(SHARED, elsewhere=True)
    config = changed(SHARED, rollout={"kv_tokens": kv_tokens(config, 1, 80)})
    shared = planned(config, 1, 80)
    assert not list(shared.faults())
    assert shared.device_total(0) == sum(use.total_bytes for use in shared.uses)


def test_stages_that_take_turns_need_the_larger_of_both():
    turns = {"stack": {"share": "alternate"}, "scheduler": {"selector": "static"}}
    together = kv_tokens(load_run(SHARED, elsewhere=True), 1, 40)
    config = changed(SHARED, **turns)
    alone = kv_tokens(config, 1, 40)
    assert alone > together
    config = changed(SHARED, **turns, rollout={"kv_tokens": alone})
    plan = planned(config, 1, 40)
    trainer, engine = plan.uses
    assert plan.turn_total(0, "trainer") == trainer.total_bytes + CONTEXT_BYTES
    assert plan.turn_total(0, "rollout") == engine.total_bytes + CONTEXT_BYTES
    assert plan.device_total(0) == max(trainer.total_bytes, engine.total_bytes) + CONTEXT_BYTES
    assert not list(plan.faults()) and list(
        planned(changed(SHARED, rollout={"kv_tokens": alone}), 1, 40).faults()
    )
    ((message, _),) = planned(config, 1, 30).faults()
    assert "(trainer 31.4, rollout-0 0.6)" in message and "trainer's optimizer" in message


def test_without_gpus_a_trainer_keeps_its_state_unless_it_has_a_directory():
    turns = {"stack": {"share": "alternate"}, "trainer": {"device": "cpu"}, "rollout": {"device": "cpu"}}
    kept = planned(changed(SHARED, **turns), 0, 80).uses[0]
    spilled = planned(
        changed(SHARED, **turns | {"trainer": {"device": "cpu", "offload_dir": "/d"}}), 0, 80
    ).uses[0]
    assert kept.asleep is not None and spilled.asleep is not None
    assert kept.asleep.optimizer == kept.parts.optimizer > 0 and kept.asleep.activations == 0
    assert spilled.asleep.total_bytes == kept.asleep.staging + kept.asleep.base


def test_what_does_not_fit_names_the_devices_and_the_largest_part():
    faults = list(planned(large(), 8, 40).faults())
    assert [message.split(" would")[0] for message, _ in faults] == ["GPU 0-3", "GPU 4-7"]
    (_, remedy), (message, kv_remedy) = faults
    assert "the largest part is rollout-0's kv, 36.0 GiB" in message and "rollout.kv_tokens" in kv_remedy
    assert "microbatch_tokens" in remedy
    plain = changed(LARGE, trainer={"activation_checkpointing": False}, rollout={"kv_tokens": 262144})
    ((message, remedy),) = planned(plain, 8, 80).faults()
    assert "trainer's activations" in message and remedy == "set trainer.activation_checkpointing = true"


def test_all_of_the_kv_that_contexts_might_need_is_too_much_for_any_card():
    ((message, _),) = planned(load_run(LARGE, elsewhere=True), 8, 80).faults()
    assert "rollout-0's kv, 288.0 GiB" in message


@pytest.mark.parametrize(
    ("file", "gpus", "gib"), [(LARGE, 8, 80), (LARGE, 8, 64), (SHARED, 1, 80), (SHARED, 2, 24)]
)
def test_kv_that_is_left_open_takes_what_is_free(file: Path, gpus: int, gib: float):
    config = load_run(file, elsewhere=True)
    tokens = kv_tokens(config, gpus, gib)
    least, most = (
        config.rollout.max_context_tokens,
        config.rollout.max_sequences * config.rollout.max_context_tokens,
    )
    assert least <= tokens <= most
    plan = planned(changed(file, rollout={"kv_tokens": tokens}), gpus, gib)
    rollout = [use for use in plan.uses if use.process == "rollout-0"]
    fullest = max(plan.device_total(number) for use in rollout for number in use.numbers)
    assert fullest <= 0.9 * gib * GIB
    # Whole contexts: less than one more would fit.
    one_more = rollout[0].parts.kv * least / tokens
    assert tokens == most or fullest + 2 * one_more > 0.9 * gib * GIB


def test_kv_that_is_given_stays_and_engines_on_the_processor_commit_what_they_write():
    assert kv_tokens(large(), 8, 80) == 262144
    assert kv_tokens(load_run(EXAMPLES / "tictactoe.toml"), 0, 16) == 0
    # Where not even one context fits, one is planned for, and the plan says that it does not fit.
    config = load_run(LARGE, elsewhere=True)
    assert kv_tokens(config, 8, 16) == config.rollout.max_context_tokens


def test_published_versions_are_no_memory_of_a_gpu():
    trainer = planned(large(), 8, 80).uses[0]
    assert trainer.parts.staging == 0 and trainer.parts.base == CONTEXT_BYTES


def test_without_gpus_the_machine_has_every_rank():
    config = load_run(EXAMPLES / "tictactoe.toml")
    plan = planned(config, 0, 16)
    assert all(use.numbers == () for use in plan.uses)
    assert plan.device_total(0) == sum(use.ranks * use.parts.total_bytes for use in plan.uses)
    assert [use.ranks for use in plan.uses] == [config.trainer.ranks, config.rollout.engines]
    assert not list(plan.faults())
    ((message, _),) = planned(config, 0, 0.01).faults()
    assert message.startswith("this machine would hold ")


@given(gib=st.floats(1, 200), ranks=st.sampled_from([1, 2, 4]), engines=st.integers(1, 4))
@settings(max_examples=30)
def test_a_plan_fits_exactly_where_no_device_holds_more_than_it_has(gib, ranks, engines):
    config = changed(
        LARGE, trainer={"ranks": ranks, "devices": "auto"}, rollout={"engines": engines, "devices": "auto"}
    )
    plan = planned(config, 8, gib)
    fits = all(plan.device_total(number) <= plan.device_bytes for number in range(8))
    assert fits == (not list(plan.faults()))


def test_the_shape_stands_for_a_checkpoint_that_is_not_here(tmp_path: Path):
    with pytest.raises(ModelNotFound, match="is not a directory"):
        load_run(LARGE)
    scratch = load_run(EXAMPLES / "tictactoe.toml").model.scratch
    write_scratch(tmp_path / "model", scratch, 0, "float32")
    spec = load_spec(tmp_path / "model")
    assert spec == spec_of_scratch(scratch)
    shape = {
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "layers": spec.layers,
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "vocabulary": spec.vocab,
        "tied": True,
    }
    here = {"path": str(tmp_path / "model"), "shape": shape}
    config = RunConfig.model_validate({"name": "t", "environment": {"name": "e"}, "model": here})
    assert planned_spec(config) == spec
    assert config.model.shape is not None and spec_of_shape(config.model.shape).shapes() == spec.shapes()
    other = RunConfig.model_validate(
        {"name": "t", "environment": {"name": "e"}, "model": {**here, "shape": {**shape, "layers": 9}}}
    )
    with pytest.raises(ConfigError, match="they are not one model"):
        planned_spec(other)
