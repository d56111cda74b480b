"""Lets TRL train on given trajectories: `.venv-trl/bin/python tests/peers/trl_side.py DIRECTORY`.

Runs GRPOTrainer's own code, unchanged, in TRL's environment; imports nothing of EARL. DIRECTORY holds
request.json, whose keys are those of tests/peers/cases.py, and the model directories that it names;
answer.json and gradients.safetensors are written beside them.

Samples reach the trainer by its `rollout_func`, the official place for a sampler of one's own. Two
things are set from outside: `use_vllm` (vLLM is not installed here; it only switches on the correction
for samples that an engine made), and, for the formulas alone, the forward pass, which returns the
given log-probs and entropies in place of a model's.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


class Samples:
    """Fixed trajectories and rewards in place of a sampler and a reward function."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request

    def rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        found = self.request
        return {
            "prompt_ids": found["prompts"],
            "completion_ids": found["completions"],
            "logprobs": found["sampler"],
            "env_mask": found["mask"],
        }

    def reward(self, prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return self.request["rewards"]


def trainer_for(
    request: dict[str, Any], settings: dict[str, Any], model: Path, directory: Path
) -> GRPOTrainer:
    """GRPOTrainer on `model` with the case's settings; samples and rewards are the request's."""
    samples = Samples(request)
    count = len(request["rewards"])
    config = GRPOConfig(
        output_dir=str(directory / "trl"),
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=count,
        num_generations=request["group_size"],
        max_completion_length=settings.get("normaliser", 64),
        # Two iterations make the trainer keep the log-probs from before the first.
        num_iterations=2,
        loss_type=settings["loss_type"],
        scale_rewards=settings.get("scale_rewards", "group"),
        epsilon=settings["epsilon"],
        epsilon_high=settings["epsilon_high"],
        importance_sampling_level=settings.get("level", "token"),
        delta=settings.get("delta"),
        beta=settings["beta"],
        entropy_coef=settings["entropy_coef"],
        temperature=settings.get("temperature", 1.0),
        # EARL's KL term is the plain k3 estimate; this would multiply it by the ratio.
        use_bias_correction_kl=False,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=settings["cap"],
        disable_dropout=True,
    )
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=policy,
        reward_funcs=samples.reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * count}),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        rollout_func=samples.rollout,
    )
    trainer.use_vllm = bool(settings["cap"])
    trainer._last_loaded_step = 0  # there is no vLLM to send weights to
    trainer.current_gradient_accumulation_steps = 1  # what `train` sets before a step
    trainer.model.train()
    return trainer


def metrics_of(trainer: GRPOTrainer) -> dict[str, float]:
    """The last values of what the trainer logs about a loss."""
    found = trainer._metrics["train"]
    names = {
        "entropy": "entropy",
        "clip_fraction": "clip_ratio/region_mean",
        "kl_reference": "kl",
        "logprob_mismatch": "sampling/sampling_logp_difference/mean",
    }
    return {ours: float(found[theirs][-1]) for ours, theirs in names.items() if found.get(theirs)}


def formulas(request: dict[str, Any], model: Path, directory: Path) -> dict[str, Any]:
    """The loss and its gradient for given log-probs: per case and trained token, row after row."""
    given = request["given"]
    width = max(map(len, request["completions"]))

    def grid(rows: list[list[float]]) -> torch.Tensor:
        return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows])

    answers = {}
    for name, settings in request["cases"].items():
        trainer = trainer_for(request, settings, model, directory)
        current = {"logprobs": grid(given["old"]), "entropy": grid(given["entropy"])}

        def forward(model: Any, *_: Any, trainer: Any = trainer, current: Any = current, **__: Any) -> Any:
            if model is trainer.ref_model:
                return grid(given["reference"]), None, None
            return current["logprobs"], current["entropy"], None

        trainer._get_per_token_logps_and_entropies = forward
        inputs = trainer._generate_and_score_completions([{"prompt": "a"} for _ in request["rewards"]])
        logprobs, entropy = grid(given["logprobs"]), grid(given["entropy"])
        current.update(logprobs=logprobs.requires_grad_(), entropy=entropy.requires_grad_())
        loss = trainer.compute_loss(trainer.model, inputs)
        (gradient,) = torch.autograd.grad(loss, logprobs)
        trained = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        answers[name] = {
            "settings": settings,
            "advantages": inputs["advantages"].tolist(),
            "loss": loss.item(),
            "gradient": gradient[trained].tolist(),
            "metrics": metrics_of(trainer),
        }
    return answers


def whole(request: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Sampled before an update, trained on after it (settings["moved"]) or before: loss, parameter gradients.

    Weights: old/ made the batch's own log-probs, new/ is after the update, reference/ the KL's.
    """
    old, new, reference = (directory / name for name in ("old", "new", "reference"))
    answers, gradients = {}, {}
    for name, settings in request["cases"].items():
        trainer = trainer_for(request, settings, old, directory)
        if trainer.ref_model is not None:
            trainer.ref_model.load_state_dict(load_file(reference / "model.safetensors"), strict=False)
            trainer.ref_model.tie_weights()
        inputs = trainer._generate_and_score_completions([{"prompt": "a"} for _ in request["rewards"]])
        if settings["moved"]:
            trainer.model.load_state_dict(load_file(new / "model.safetensors"), strict=False)
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        answers[name] = {
            "settings": settings,
            "advantages": inputs["advantages"].tolist(),
            "loss": loss.item(),
            "old": inputs["old_per_token_logps"].tolist(),
            "reference": inputs["ref_per_token_logps"].tolist() if settings["beta"] else None,
            "metrics": metrics_of(trainer),
        }
        for parameter, tensor in trainer.model.named_parameters():
            gradients[f"{name}/{parameter}"] = tensor.grad.contiguous()
    save_file(gradients, directory / "gradients.safetensors")
    return answers


def main() -> int:
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    request = json.loads((directory / "request.json").read_text())
    answer = {
        "versions": {name: version(name) for name in ("trl", "torch", "transformers")},
        "cases": formulas(request, directory / "old", directory)
        if "given" in request
        else whole(request, directory),
    }
    (directory / "answer.json").write_text(json.dumps(answer, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
