"""The examples with real tools, a few steps of each from its run file: tools are really called."""

import json

import pytest

from tests.integration.test_stack_run import ROOT, Launched, assert_ledger_adds_up, launched

__all__ = ["launched"]

WARMUP, EVALUATED = 32, 4
FEW = {
    "scheduler.steps": "2",
    "scheduler.group_size": "4",
    "scheduler.batch_groups": "2",
    "warmup.batch_episodes": str(WARMUP),
    "warmup.minibatches": "2",
    "evaluation.episodes": str(EVALUATED),
    "rollout.max_sequences": "16",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("example", "tried", "right"), [("python", "called", "computed"), ("search", "searched", "found")]
)
def test_smollm2_trains_on_real_tools(launched: Launched, smollm2, example, tried, right):
    dotted = [text for key, value in FEW.items() for text in (f"--{key}", value)]
    run_file = str(ROOT / "examples" / f"smollm2_{example}.toml")
    launched._popen(run_file, "--name", launched.name, "--runs-dir", str(launched.directory), *dotted)
    code, figures = launched.finish(800.0)
    assert code == 0, launched.said
    assert_ledger_adds_up(figures)
    assert (figures["trained"], figures["dropped"], figures["live"]) == (WARMUP + 2 * 8, 0, 0)
    assert figures["evaluated"] == 2 * EVALUATED
    warmup, *trained = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
    # Legal actions are calls: all of the warm-up's run, some with what was asked for.
    assert warmup["turns_mean"] == 2.0 and warmup[f"{tried}_mean"] == 1.0 and 0 < warmup[f"{right}_mean"] < 1
    assert len(trained) == 2 and all(f"{tried}_mean" in line for line in trained)
    launched.assert_nothing_left()
