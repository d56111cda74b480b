"""A run that begins with supervised fine-tuning on the conversations of its tasks' file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launched import assert_ledger_adds_up, launch_in

BOARD = "0 1 2 3 4 5 6 7 8"


def shown(number: int) -> dict:
    """A task, and the one first move that is shown for it: the middle."""
    later = BOARD.replace("4", "x4").replace(str(number % 4), f"o{number % 4}")
    return {
        "opponent": "random",
        "show": [
            {"role": "user", "content": BOARD},
            {"role": "assistant", "content": "[4]"},
            {"role": "user", "content": later},
            {"role": "assistant", "content": f"[{5 + number % 3}]"},
        ],
    }


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_policy_does_what_it_was_shown_before_it_plays(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(shown(number)) + "\n" for number in range(12)))
    with launch_in(tmp_path) as launched:
        launched.start(
            environment__tasks=str(tasks),
            environment__demonstration_key="show",
            environment__held_out="0",
            warmup__batches="8",
            warmup__batch_episodes="24",
            warmup__minibatches="6",
            warmup__lr="0.02",
            scheduler__steps="2",
            scheduler__transcripts="64",
            evaluation__episodes="0",
        )
        code, result = launched.finish()
        assert code == 0, launched.said
        assert_ledger_adds_up(result)
        lines = (launched.run_directory / "metrics.jsonl").read_text().splitlines()
        losses = [each["loss"] for each in map(json.loads, lines) if each.get("phase") == "warmup"]
        assert len(losses) == 8 and losses[-1] < 0.3 * losses[0], losses
        samples = map(json.loads, (launched.run_directory / "samples.jsonl").read_text().splitlines())
        first = [sample["turns"][1]["text"] for sample in samples if sample["step"] == 1]
        assert len(first) >= 8 and first.count("[4]") > 0.8 * len(first), first
