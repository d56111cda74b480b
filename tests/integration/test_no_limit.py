"""A run whose file bounds no context: episodes grow past what used to end them, and past memory they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from earl.stack.rundir import to_toml
from tests.support.launched import Launched, assert_ledger_adds_up, launch_in
from tests.support.runs import tictactoe

pytestmark = pytest.mark.timeout(300)

# A turn has so many tokens of observation, and ten: a game of five turns has over 500.
OBSERVED = 120
STEPS = 2


def without_a_bound(directory: Path, observed: int = OBSERVED, **rollout: int) -> Path:
    """A run file that names neither a bound of contexts nor positions of the model."""
    config = tictactoe(
        directory,
        model={"observation_prefix": " ".join(["x"] * observed)},
        scheduler={"steps": STEPS, "profile_s": 0.0},
        evaluation={"episodes": 0},
        rollout={"arena_bytes": 0, **rollout},
    ).model_dump(mode="json", exclude_defaults=True)
    del config["rollout"]["max_context_tokens"], config["model"]["scratch"]["max_positions"]
    del config["name"], config["runs_dir"]
    file = directory / "run.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    return file


def metrics_of(launched: Launched) -> list[dict[str, float]]:
    return [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_context_grows_past_the_former_bound_and_none_is_truncated(tmp_path: Path):
    with launch_in(tmp_path, forked=True) as launched:
        launched.run_file = without_a_bound(tmp_path)
        code, figures = launched.start().finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        metrics = metrics_of(launched)
        assert max(line["length_max"] for line in metrics) > 256
        assert not any(line["truncated_episodes"] for line in metrics)
        written = json.loads((launched.run_directory / "run.json").read_text())["rollout"]
        assert written["max_context_tokens"] == 0 and written["held_context_tokens"] > 10_000
        model = json.loads((launched.run_directory / "model" / "config.json").read_text())
        assert model["max_position_embeddings"] == written["held_context_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truncated", "observed", "kv_tokens"),
    # What a script plays ends in mid-game; what the policy samples, in an answer that has three tokens left.
    [("mask", OBSERVED, 400), ("train", 243, 256)],
)
def test_an_episode_past_what_memory_holds_is_truncated_and_the_run_goes_on(
    tmp_path: Path, truncated: str, observed: int, kv_tokens: int
):
    with launch_in(tmp_path, forked=True) as launched:
        # The engine's memory holds one context of so many tokens, and no layout a longer one.
        launched.run_file = without_a_bound(tmp_path, observed, kv_tokens=kv_tokens)
        code, figures = launched.start(scheduler__truncated=truncated).finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(figures)
        assert figures["dropped"] == 0
        first, *rest = metrics_of(launched)
        assert first["truncated_episodes"] > 0 and len(rest) == STEPS + 1
        assert observed < max(line["length_max"] for line in (first, *rest)) <= kv_tokens
        if truncated == "train":
            assert all(line["truncated_episodes"] > 0 and line["trained_tokens"] > 0 for line in rest)
