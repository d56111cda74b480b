"""The table of algorithms: each is a run file of the demo, and none is the same as another."""

from __future__ import annotations

from pathlib import Path

from benchmarks.algorithms.table import ALGORITHMS, TEACHER, KnownAlgorithm
from earl.cli.run.demo import RUN_FILE, example
from earl.config.load import load_run
from earl.fragments.advantages import ADVANTAGES
from earl.fragments.names import CREDITS, IMPORTANCE, LOSSES
from earl.models.create import create_model

# Those whose weights are compared between placements, in any case.
PLACED = {"grpo", "rloo", "opo", "gspo", "cispo", "decoupled", "ppo", "distillation"}


def test_every_algorithm_is_a_run_file_of_the_demo_and_no_two_are_the_same(tmp_path: Path):
    demo = load_run(example(RUN_FILE))
    teacher = str(create_model(tmp_path / "teacher", demo.model, 1, demo.context_tokens))
    settings = [
        load_run(example(RUN_FILE), algorithm.overrides(teacher)).model_dump_json()
        for algorithm in ALGORITHMS.values()
    ]
    assert len(set(settings)) == len(settings)
    assert settings[0] == demo.model_dump_json() and not ALGORITHMS["grpo"].keys


def test_every_fragment_that_has_a_name_is_in_the_table():
    values = {value for algorithm in ALGORITHMS.values() for value in algorithm.keys.values()}
    defaults = {"grpo", "clip", "behaviour", "discounted"}
    assert {*ADVANTAGES, *LOSSES, *IMPORTANCE, *CREDITS} - defaults <= values
    assert {name for name, algorithm in ALGORITHMS.items() if algorithm.placed} >= PLACED


def test_a_teacher_stands_in_the_keys_of_those_that_need_one():
    taught = KnownAlgorithm("taught", {"model.path": f"{TEACHER}/sub"})
    assert taught.needs_teacher and taught.overrides("/t") == [("model.path", "/t/sub")]
    assert not ALGORITHMS["grpo"].needs_teacher


def test_two_of_three_seeds_are_needed_or_each():
    assert [KnownAlgorithm("", {}).seeds_needed(seeds) for seeds in (1, 2, 3, 4, 5, 6)] == [1, 2, 2, 3, 4, 4]
    assert KnownAlgorithm("", {}, in_each=True).seeds_needed(3) == 3
