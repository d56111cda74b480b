"""The model that both sides start from: a small Llama with a word-level tokenizer, taught a little.

Random weights would earn nothing, and reinforcement learning would have nothing to start from: so it
first imitates sorted lists, but most of them in descending order, which the task pays nothing for. What
reinforcement learning has to find is that ascending order pays, and then to sort better than it was taught.
It is taught lists of every length of the unequal task, and is where both tasks start.

`python -m benchmarks.e2e.model DIRECTORY [TASK QUESTIONS]` makes it, or lets a model that is there answer.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.e2e.task import EVALUATION_SEED, TASKS, UNEQUAL, WORDS, SortTask
from earl.config.model import ScratchModel
from earl.models.create import write_scratch
from earl.models.tokenizer import Tokenizer

SHAPE = ScratchModel(
    hidden_size=128,
    intermediate_size=512,
    layers=4,
    heads=4,
    kv_heads=4,
    max_positions=96,
    rope_theta=1000.0,
    embedding_std=0.1,
    words=WORDS,
)
STEPS, BATCH, LEARNING_RATE = 480, 64, 1e-3
# Fraction of the answers that it is taught in the order that pays.
ASCENDING = 1 / 3
# Batches whose questions are drawn together and dealt out by length: less padding.
TOGETHER = 8


def make(directory: Path, seed: int = 0, steps: int = STEPS) -> Path:
    """Writes the model as transformers saves it; returns its directory. A seed gives one model."""
    write_scratch(directory, SHAPE, seed, "float32")
    tokenizer = Tokenizer.load(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    draw = random.Random(f"imitation {seed}")
    eos = min(tokenizer.stop_ids)
    batches: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(steps):
        batches = batches or _batches(tokenizer, eos, draw)
        ids, labels = batches.pop()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    return directory


def _batches(tokenizer: Tokenizer, eos: int, draw: random.Random) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """TOGETHER batches of questions of like length, in random order."""
    seeds = sorted(
        (draw.getrandbits(32) for _ in range(TOGETHER * BATCH)), key=lambda seed: len(UNEQUAL.numbers(seed))
    )
    batches = [seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH)]
    draw.shuffle(batches)
    return [_batch(tokenizer, eos, batch, draw) for batch in batches]


def _batch(
    tokenizer: Tokenizer, eos: int, seeds: list[int], draw: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """ids, labels int64[B, T]; only the answers are labelled, -100 elsewhere."""
    ids, labels = [], []
    for seed in seeds:
        prompt = tokenizer.encode_observation(UNEQUAL.question(seed), first=True)
        ordered = sorted(UNEQUAL.numbers(seed), reverse=draw.random() >= ASCENDING)
        answer = [*tokenizer.encode_text(" ".join(map(str, ordered))), eos]
        ids.append(torch.tensor(prompt + answer))
        labels.append(torch.tensor([*[-100] * len(prompt), *answer]))
    padded = torch.nn.utils.rnn.pad_sequence
    return padded(ids, batch_first=True), padded(labels, batch_first=True, padding_value=-100)


@torch.inference_mode()
def held_out(directory: Path, task: SortTask, questions: int) -> float:
    """Mean score over held-out questions, answers sampled at temperature 1 with a seed, from either side's
    model: transformers' generate, all questions in one batch."""
    tokenizer = Tokenizer.load(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    seeds = range(EVALUATION_SEED, EVALUATION_SEED + questions)
    prompts = [tokenizer.encode_observation(task.question(seed), first=True) for seed in seeds]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    torch.manual_seed(0)
    answers = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        input_ids=ids,
        attention_mask=(ids != 0).long(),
        do_sample=True,
        top_k=0,
        max_new_tokens=task.answer_tokens,
        eos_token_id=min(tokenizer.stop_ids),
        pad_token_id=0,
    )
    texts = [tokenizer.decode(answer[width:].tolist()) for answer in answers]
    return sum(map(task.score, seeds, texts)) / questions


def main() -> int:
    directory, arguments = Path(sys.argv[1]), sys.argv[2:]
    if not arguments:
        make(directory)
        score = None
    else:
        task, questions = arguments
        score = held_out(directory, TASKS[task], int(questions))
    print(json.dumps({"score": score}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
