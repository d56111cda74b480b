"""The decoder on the device against itself in float32 on the processor, and against transformers.

packed sequences of ragged lengths, some with a shared beginning ─► log-probs, gradients
    processor, float32                               what the others are compared with
    device, float32 | bfloat16, recomputing or not   forward and backward
    transformers on the device, float32, bfloat16    forward, one sequence at a time

bfloat16 rounds logits by more the larger they are: how far its log-probs are from float32's is compared with
how far those of transformers' bfloat16 are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.check import CheckFigures, CheckSettings, judged
from benchmarks.gpu.models import FAMILIES, config_of, spoken
from earl.models.module import Decoder
from earl.models.spec import spec_of

# Nats of log-probs, and the cosine of the gradients of all parameters as one vector.
TOLERANCE: dict[str, dict[str, float]] = {
    "float32": {"logprob_max": 1e-4, "gradient_cosine_min": 0.99999},
    # Medians: times that of transformers' bfloat16, divided by the temperature.
    "bfloat16": {"vs_transformers": 1.25, "logprob_p999": 0.1, "gradient_cosine_min": 0.999},
}
TEMPERATURE = 0.7
THEIR_BFLOAT16 = "transformers, bfloat16"


@dataclass(frozen=True, slots=True)
class CheckedSequences:
    """Sequences packed end to end as the trainer does it; shared: tokens that have no rows of their own."""

    sequences: list[torch.Tensor]
    shared: list[int]

    @classmethod
    def random(cls, lengths: list[int], vocabulary: int) -> CheckedSequences:
        """Every third one begins as the one before it."""
        generator = torch.Generator().manual_seed(0)
        sequences, shared = [], []
        for number, length in enumerate(lengths):
            tokens = torch.randint(0, vocabulary, (length,), generator=generator)
            head = min(length, lengths[number - 1]) // 2 if number % 3 == 2 else 0
            if head:
                tokens[:head] = sequences[-1][:head]
            sequences.append(tokens)
            shared.append(head)
        return cls(sequences, shared)

    def results(
        self, decoder: Decoder, device: str, temperature: float
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """(log-probs of each sequence's last half, float32; the gradient of their sum as one vector)."""
        rows_of = [tokens[head:] for tokens, head in zip(self.sequences, self.shared, strict=True)]
        lengths = [len(tokens) for tokens in self.sequences]
        positions = [torch.arange(head, length) for head, length in zip(self.shared, lengths, strict=True)]
        rows, targets, first = [], [], 0
        for tokens, mine in zip(self.sequences, rows_of, strict=True):
            count = len(tokens) // 2 - 1
            last = first + len(mine)
            rows.append(torch.arange(last - 1 - count, last - 1))
            targets.append(tokens[-count:])
            first = last
        decoder.zero_grad(set_to_none=True)
        logprobs, entropy = decoder(
            torch.cat(rows_of).to(device),
            torch.cat(positions).to(device),
            lengths,
            torch.cat(targets).to(device),
            temperature,
            torch.cat(rows).to(device),
            self.shared,
        )
        (logprobs.sum() + 0.1 * entropy.sum()).div(len(logprobs)).backward()
        gradient = torch.cat(
            [p.grad.flatten().float().cpu() for p in decoder.parameters() if p.grad is not None]
        )
        return list(logprobs.detach().cpu().split([len(part) for part in targets])), gradient


def model(settings: CheckSettings) -> CheckFigures:
    """Compares every family's forward and backward pass. Raises CheckFailed."""
    figures: dict[str, Any] = {}
    faults: dict[str, bool] = {}
    for family in settings.pick(FAMILIES, FAMILIES, ("qwen3",)):
        figures[family] = _family(settings, family)
        for case, row in figures[family].items():
            if case == THEIR_BFLOAT16:
                # Compared with, not judged: how far it is from float32 is the measure of ours.
                continue
            for name, bound in TOLERANCE[row["dtype"]].items():
                value = row.get(name.removesuffix("_min"))
                wrong = value is not None and (value < bound if name.endswith("_min") else value > bound)
                faults[f"{family} {case}: {name} is {value}, the bound {bound}"] = wrong
    return judged(figures, TOLERANCE, faults)


def _family(settings: CheckSettings, family: str) -> dict[str, Any]:
    device = settings.device
    heads = settings.pick(8, 4, 4)
    config = config_of(
        family,
        hidden=settings.pick(1024, 256, 64),
        layers=settings.pick(2, 2, 1),
        heads=heads,
        kv_heads=heads // 4,
        head_dim=settings.pick(128, 64, 16),
        intermediate=settings.pick(2816, 512, 96),
        vocab=settings.pick(16_000, 1024, 128),
        positions=4096,
    )
    longest = settings.pick(1024, 160, 24)
    lengths = [longest, longest - 1, longest * 7 // 8, longest // 2, longest // 2 - 3, longest // 8 + 4]
    packed = CheckedSequences.random(lengths, config["vocab_size"])
    theirs = spoken(config)
    spec = spec_of(config)
    weights = {name: theirs.state_dict()[name] for name in spec.shapes()}

    def decoder(dtype: torch.dtype, where: str, checkpointed: bool) -> Decoder:
        made = Decoder(spec)
        made.load_state_dict(weights)
        if checkpointed:
            made.checkpoint_activations()
        return made.to(where, dtype)

    expected = {
        temperature: packed.results(decoder(torch.float32, "cpu", False), "cpu", temperature)
        for temperature in (1.0, TEMPERATURE)
    }
    rows: dict[str, Any] = {}
    for dtype in ("float32", "bfloat16"):
        for checkpointed, temperature in ((False, 1.0), (True, TEMPERATURE)):
            made = decoder(getattr(torch, dtype), device, checkpointed)
            results = packed.results(made, device, temperature)
            name = f"{dtype}, recomputed, temperature {temperature}" if checkpointed else dtype
            rows[name] = {"dtype": dtype, **_compared(results, expected[temperature])}
    for dtype in ("float32", "bfloat16"):
        theirs = theirs.to(device, getattr(torch, dtype))
        rows[f"transformers, {dtype}"] = {
            "dtype": dtype,
            **_differences(spoken_logprobs(theirs, packed.sequences, device), expected[1.0][0]),
        }
    least = rows[THEIR_BFLOAT16]["logprob_median"]
    for temperature, name in (
        (1.0, "bfloat16"),
        (TEMPERATURE, f"bfloat16, recomputed, temperature {TEMPERATURE}"),
    ):
        rows[name]["vs_transformers"] = round(temperature * rows[name]["logprob_median"] / least, 3)
    return rows


@torch.no_grad()
def spoken_logprobs(theirs: Any, sequences: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """Log-probs of each sequence's last half by transformers' model, float32 on the processor."""
    return [
        theirs(tokens[None].to(device))
        .logits[0, :-1]
        .float()
        .log_softmax(-1)
        .gather(-1, tokens[1:, None].to(device))[-(len(tokens) // 2 - 1) :, 0]
        .cpu()
        for tokens in sequences
    ]


def _compared(
    results: tuple[list[torch.Tensor], torch.Tensor], expected: tuple[list[torch.Tensor], torch.Tensor]
) -> dict[str, float]:
    cosine = torch.nn.functional.cosine_similarity(results[1].double(), expected[1].double(), 0)
    return {**_differences(results[0], expected[0]), "gradient_cosine": round(float(cosine), 7)}


def _differences(logprobs: list[torch.Tensor], expected: list[torch.Tensor]) -> dict[str, float]:
    apart = (torch.cat(logprobs) - torch.cat(expected)).abs()
    return {
        "logprob_max": float(f"{apart.max():.3g}"),
        "logprob_median": float(f"{apart.median():.3g}"),
        "logprob_p999": float(f"{apart.quantile(0.999):.3g}"),
    }
