"""Every algorithm of the benchmarks' table as `earl train`, and its weights in each placement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.algorithms.placements import PLACEMENTS, one_run, placed_config, row
from benchmarks.algorithms.table import ALGORITHMS
from earl.models.create import create_model
from earl.obs.metrics import flat, read_lines
from earl.stack.rundir import to_toml
from tests.support.launched import assert_ledger_adds_up, launch_in

STEPS = 3
# After the warm-up most moves are legal, so that rewards differ. A batch's second optimizer step has ratios
# other than 1.
SMALL = {
    "warmup__batch_episodes": "48",
    "warmup__passes": "8",
    "warmup__minibatches": "2",
    "warmup__lr": "1e-2",
    "trainer__minibatches": "2",
    "trainer__lr": "3e-3",
    "scheduler__steps": str(STEPS),
}
# Bounds that so few steps need not come to: their weights may be those of GRPO.
BOUNDS = ("dapo", "dual-clip")
OVERRIDES = [(key.replace("__", "."), value) for key, value in SMALL.items()]


def trained(directory: Path, name: str) -> list[Mapping[str, Any]]:
    """The lines of metrics.jsonl of a deterministic run's training steps."""
    config = placed_config([("stack.placement", "separate")])
    teacher = create_model(directory / "teacher", config.model, config.seed + 1, config.context_tokens)
    run_file = directory / "algorithm.toml"
    run_file.write_text(to_toml(config.model_dump(mode="json")))
    keys = {key.replace(".", "__"): value for key, value in ALGORITHMS[name].overrides(str(teacher))}
    with launch_in(directory, forked=True) as launched:
        launched.run_file = run_file
        code, figures = launched.start(**{**SMALL, **keys}).finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        lines = [flat(line) for line in read_lines(launched.run_directory / "metrics.jsonl")]
        launched.assert_nothing_left()
    return [line for line in lines if line["phase"] == "train"]


@pytest.fixture(scope="module")
def of_grpo(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The digest of the weights that GRPO has in the end."""
    return trained(tmp_path_factory.mktemp("grpo"), "grpo")[-1]["weights_digest"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_an_algorithm_trains_and_is_not_another(tmp_path: Path, of_grpo: float, name: str):
    steps = trained(tmp_path, name)
    assert [line["step"] for line in steps] == [1, 2, 3]
    numbers = {key: value for line in steps for key, value in line.items() if isinstance(value, float)}
    assert numbers and all(map(math.isfinite, numbers.values())), numbers
    assert all(line["grad_norm"] > 0 and line["trained_tokens"] > 0 for line in steps)
    # Rewards differ, so advantages are not all zero.
    assert any(-1 < line["reward_mean"] < 1 for line in steps)
    assert len({line["weights_digest"] for line in steps}) == STEPS
    if name not in BOUNDS:
        assert (steps[-1]["weights_digest"] == of_grpo) == (name == "grpo")
    assert all(("explained_variance" in line) == (name == "ppo") for line in steps)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_weights_are_the_same_in_each_placement(tmp_path: Path, name: str):
    given = [("runs_dir", str(tmp_path)), *OVERRIDES, *ALGORITHMS[name].overrides()]
    # Without a GPU "shared" alone is the same processes as "separate".
    ways = ("separate", "shared-in-turns", "actors")
    runs = {way: one_run(way, [*PLACEMENTS[way], *given]) for way in ways}
    figures = row(name, runs, STEPS)
    assert figures["digest_equal"] == 1.0, figures
    # Each played in as many workers as it says.
    workers = {way: len(list((tmp_path / way / "logs").glob("rollout-*.log"))) for way in ways}
    assert workers == {"separate": 1, "shared-in-turns": 1, "actors": 4}
