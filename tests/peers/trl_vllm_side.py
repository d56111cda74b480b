"""TRL with vLLM as its sampler: `.venv-trl-vllm/bin/python -m tests.peers.trl_vllm_side DIRECTORY MODE`.

MODE: eager or compiled. DIRECTORY/model is what it starts from.

DIRECTORY/answer.json: per step the largest difference of a token's log-prob by vLLM and by the trainer
(`differences`) and the mean answer's length (`lengths`), and by how much the steps moved a parameter at most
(`moved`).
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOTrainer

from benchmarks.e2e import trl_side
from benchmarks.e2e.settings import Settings

# Steps that change what the model says at once.
SETTINGS = Settings(task="equal", group_size=4, groups=2, steps=3, lr=0.1, threads=1)


class Metrics(TrainerCallback):
    """Keeps the trainer's metrics of every step, which it drops when it logs them at the end."""

    trainer: GRPOTrainer
    steps: dict[str, list[float]]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps = {name: list(values) for name, values in self.trainer._metrics["train"].items()}


def spread(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """Rewards that differ among the answers of an untaught model."""
    return [float(len(set(completion.split()))) for completion in completions]


def main() -> int:
    directory = Path(sys.argv[1])
    path = str(directory / "model")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    trl_side.start_vllm(eager=sys.argv[2] == "eager")
    configuration = trl_side.configuration(SETTINGS, "vllm", str(directory / "output"))
    configuration.vllm_importance_sampling_correction = True
    questions = [SETTINGS.sort.question(seed) for seed in range(SETTINGS.groups * SETTINGS.steps)]
    metrics = Metrics()
    metrics.trainer = trainer = GRPOTrainer(
        model=model,
        reward_funcs=spread,
        args=configuration,
        train_dataset=Dataset.from_dict({"prompt": questions}),
        processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
        callbacks=[metrics],
    )
    trainer.train()
    answer = {
        "differences": metrics.steps["sampling/sampling_logp_difference/max"],
        "lengths": metrics.steps["completions/mean_length"],
        "moved": max(
            float((tensor.detach() - before[name]).abs().max()) for name, tensor in model.named_parameters()
        ),
    }
    (directory / "answer.json").write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
