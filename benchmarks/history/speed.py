"""Tokens a second with drafts and without, in cases where histories help and where they do not.

epoch 0   answers of other seeds to each prompt ─► the history
epoch 1   the same prompts without drafts, with the history, with the context alone, in turns
histories that do not help: the same, and a second engine without drafts, the control; every round in new
          processes, so that the luck of one is not in every figure
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.history.texts import (
    EPOCH_ANSWERS,
    accepted_and_steps,
    coverage,
    opening,
    records,
    reference,
)
from benchmarks.history.ties import NEAR, Referee, first_difference
from benchmarks.history.ways import Answered, Prompt, Way
from benchmarks.record.progress import counted, phase
from earl.models.spec import load_spec
from services.rollout.engines.contract.engine import EngineSpec

# The reuse at which the paper's speed is batches for.
REUSE = (0.75, 0.95)
TEMPERATURES = (1.0, 0.7)
HELPING = {"openings": opening, "records": records}
# Sequences at once, and requests, of each case's batches; and of the stream, of the case that has it.
BATCHES, STREAM, STREAMED = ((1, 1), (8, 8)), (8, 32), "records"
USELESS = ("random", "another")
# Distinct prompts.
PROMPTS = 8
# Batches of the bound, in multiples of 8 sequences, and of useless histories.
WINDOWS, USELESS_BATCHES = (0, 1, 2, 4, 8), (1, 8, 32)
# Rounds of useless histories, each in new processes, for each one of other cases: what is to be seen there
# is small.
USELESS_ROUNDS = 2
# Tokens of a context, at most.
CONTEXT = 1024


class Measurement:
    """Batches of prompts in every case. new: tokens of an answer."""

    def __init__(self, spec: EngineSpec, new: int, rounds: int) -> None:
        from transformers import AutoTokenizer

        self._spec, self._new, self._rounds = spec, new, rounds
        self._tokenizer: Any = AutoTokenizer.from_pretrained(spec.model_dir)
        self._vocabulary = load_spec(spec.model_dir).vocab
        self._draw = random.Random(1)
        self._rows: list[dict[str, Any]] = []
        # (prompt, what each of two ways answered) of sequences that differ.
        self._apart: list[tuple[Prompt, list[int], list[int]]] = []

    async def run(self) -> dict[str, Any]:
        """All cases, then the figures."""
        async with self._engines():
            rates = await self._rates()
            for case, make in HELPING.items():
                for temperature in TEMPERATURES:
                    await self._case(case, make, temperature, rates)
            epoch = await self._epoch(opening, 1.0)
        useless: dict[tuple[str, int], list[dict[str, Answered]]] = {}
        for number in counted("histories that do not help", range(USELESS_ROUNDS * self._rounds)):
            async with self._engines():
                await self._useless(number, epoch, useless)
        for (case, size), turns in useless.items():
            self._add(self._row(case, 1.0, size, turns))
        return {**self._figures(rates), **self._ties()}

    @asynccontextmanager
    async def _engines(self) -> AsyncIterator[None]:
        """The engines that are compared, in new processes."""
        phase("starting the engines")
        async with AsyncExitStack() as stack:
            self._plain = await Way.start(stack, self._spec)
            self._control = await Way.start(stack, self._spec, name="control")
            self._drafting = await Way.start(stack, self._spec, name="drafting", drafts=True)
            yield

    def ids(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self._tokenizer(text)["input_ids"]

    def _seed(self) -> int:
        return self._draw.randrange(1 << 32)

    async def _rates(self) -> dict[int, float]:
        """Rows a second without drafts, by sequences at once."""
        rates: dict[int, float] = {}
        for window in counted("rows a second", WINDOWS):
            size = 8 * (window + 1)
            prompts = [Prompt(self.ids(opening(n)), [], 1.0, self._seed()) for n in range(size)]
            await self._plain.answer(prompts, 1)
            measured = [await self._plain.answer(prompts, 16) for _ in range(3)]
            rates[size] = statistics.median(answered.rate for answered in measured)
        return rates

    async def _epoch(self, make: Callable[[int], str], temperature: float) -> list[list[list[int]]]:
        """Prompt and answers of the epoch before, as one, of each prompt."""
        ids = [self.ids(make(number)) for number in range(PROMPTS)]
        prompts = [Prompt(each, [], temperature, self._seed()) for each in ids for _ in range(EPOCH_ANSWERS)]
        answered = await self._plain.answer(prompts, self._new)
        wholes = [p.ids + a.ids for p, a in zip(prompts, answered.answers, strict=True)]
        return [wholes[first : first + EPOCH_ANSWERS] for first in range(0, len(wholes), EPOCH_ANSWERS)]

    async def _case(
        self, case: str, make: Callable[[int], str], temperature: float, rates: dict[int, float]
    ) -> None:
        phase(f"{case} at temperature {temperature}: the epoch before")
        epoch = await self._epoch(make, temperature)
        # An engine has drafted for long before: what its steps cost is known.
        first = [
            Prompt(self.ids(make(n)), list(map(reference, epoch[n])), temperature, self._seed())
            for n in range(PROMPTS)
        ]
        await self._drafting.answer(first, self._new)
        for size, requests in (*BATCHES, *((STREAM,) if case == STREAMED else ())):
            turns: list[dict[str, Answered]] = []
            batches: list[list[Prompt]] = []
            title = f"{case} at {temperature}, {requests} requests, {size} at once"
            for number in counted(title, range(self._rounds)):
                chosen = [(number + n) % PROMPTS for n in range(requests)]
                prompts = [
                    Prompt(self.ids(make(n)), list(map(reference, epoch[n])), temperature, self._seed())
                    for n in chosen
                ]
                batches.append(prompts)
                ways = {"history": (self._drafting, True), "context": (self._drafting, False)}
                turns.append(await self._turn(prompts, number, size, ways))
            row = self._row(case, temperature, size, turns)
            row["requests"] = requests
            answers = [
                (prompt, answer.ids)
                for prompts, turn in zip(batches, turns, strict=True)
                for prompt, answer in zip(prompts, turn["plain"].answers, strict=True)
            ]
            row["coverage"] = round(statistics.fmean(self._coverage(*pair) for pair in answers), 3)
            stands = {window: self._stands(answers, window, stream=requests > size) for window in WINDOWS}
            row["accepted_a_step"] = {str(window): round(value, 3) for window, value in stands.items()}
            if size == 8:
                row["bound"] = round(
                    max(
                        rates[8 * (window + 1)] / rates[8] * (1 + stands[window]) / (window + 1)
                        for window in WINDOWS
                    ),
                    3,
                )
            self._add(row)

    @staticmethod
    def _stands(answers: Sequence[tuple[Prompt, list[int]]], window: int, *, stream: bool) -> float:
        """Drafted tokens that stand in a step: the mean over answers; in a stream, where each answer's steps
        take time from all, that over steps."""
        counts = [accepted_and_steps(each.ids, ids, each.references, window) for each, ids in answers]
        if stream:
            return sum(accepted for accepted, _ in counts) / sum(steps for _, steps in counts)
        return statistics.fmean(accepted / steps for accepted, steps in counts)

    def _coverage(self, prompt: Prompt, answer: Sequence[int]) -> float:
        import numpy as np

        others = [np.frombuffer(ids, np.int32).tolist()[len(prompt.ids) :] for ids in prompt.references]
        return coverage(answer, others)

    async def _useless(
        self,
        number: int,
        epoch: list[list[list[int]]],
        turns: dict[tuple[str, int], list[dict[str, Answered]]],
    ) -> None:
        """One round of histories that do not help: adds a turn of each case and size to `turns`."""
        # An engine has answered for long before: what steps of the drafting one cost is known.
        before = [
            Prompt(self.ids(opening(n)), list(map(reference, epoch[n])), 1.0, self._seed())
            for n in range(PROMPTS)
        ]
        for way in (self._plain, self._control, self._drafting):
            await way.answer(before, self._new)
        for case in USELESS:
            for size in USELESS_BATCHES:
                prompts = []
                for place in range(size):
                    which = (number + place) % PROMPTS
                    known = epoch[(which + 1) % PROMPTS] if case == "another" else self._noise()
                    ids = self.ids(opening(which))
                    prompts.append(Prompt(ids, list(map(reference, known)), 1.0, self._seed()))
                ways = {"history": (self._drafting, True), "control": (self._control, False)}
                turns.setdefault((case, size), []).append(await self._turn(prompts, number, size, ways))

    def _noise(self) -> list[list[int]]:
        return [[self._draw.randrange(self._vocabulary) for _ in range(500)] for _ in range(EPOCH_ANSWERS)]

    async def _turn(
        self, prompts: list[Prompt], number: int, size: int, others: Mapping[str, tuple[Way, bool]]
    ) -> dict[str, Answered]:
        """Answers of the engine without drafts and of others, another one first each time.

        size: prompts at once. others: (engine, whether requests bring their references).
        """
        ways = {"plain": (self._plain, False), **others}
        for way in {way for way, _ in ways.values()}:
            # The prompts' KV is there for all of them.
            await way.answer(prompts, 1, references=False)
        names = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        turn = {
            name: await ways[name][0].answer(prompts, self._new, references=ways[name][1], most=size)
            for name in names
        }
        for prompt, plain, drafted in zip(
            prompts, turn["plain"].answers, turn["history"].answers, strict=True
        ):
            if first_difference(plain.ids, drafted.ids) is not None:
                self._apart.append((prompt, plain.ids, drafted.ids))
        return turn

    def _row(
        self, case: str, temperature: float, size: int, turns: list[dict[str, Answered]]
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"case": case, "temperature": temperature, "batch": size}
        for name in turns[0]:
            row[f"{name}_tokens_per_s"] = round(statistics.median(turn[name].rate for turn in turns), 1)
        for name in [name for name in turns[0] if name != "plain"]:
            ratios = sorted(turn[name].rate / turn["plain"].rate for turn in turns)
            row[f"{name}_speedup"] = round(statistics.median(ratios), 3)
            row[f"{name}_range"] = [round(ratios[0], 3), round(ratios[-1], 3)]
            row[f"{name}_drafted"] = sum(turn[name].drafted for turn in turns)
            row[f"{name}_accepted"] = sum(turn[name].accepted for turn in turns)
            tokens = sum(turn[name].tokens for turn in turns)
            row[f"{name}_tokens_a_step"] = round(tokens / size / sum(turn[name].steps for turn in turns), 2)
            # Tokens a step of a sequence that has not ended yet.
            row[f"{name}_tokens_a_sequence_step"] = round(tokens / (tokens - row[f"{name}_accepted"]), 2)
        return row

    def _add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        sys.stderr.write(f"{row}\n")

    def _figures(self, rates: dict[int, float]) -> dict[str, Any]:
        reused = [row for row in self._rows if REUSE[0] <= row.get("coverage", 0.0) <= REUSE[1]]
        useless = [row for row in self._rows if row["case"] in USELESS]
        # The worst, if there are several.
        alone = [row["history_speedup"] for row in reused if row["batch"] == 1]
        return {
            "rows_per_s": {str(size): round(rate, 1) for size, rate in rates.items()},
            "speedup_b1": min(alone, default=None),
            **self._of_bound("b8", [row for row in reused if row["requests"] == 8]),
            **self._of_bound("stream", [row for row in reused if row["requests"] == STREAM[1]]),
            "worst": min(row["history_speedup"] for row in useless),
            "worst_control": min(row["control_speedup"] for row in useless),
            "cases": self._rows,
        }

    @staticmethod
    def _of_bound(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The slowest row's speed; the bound of the row that is farthest from its own, and how far."""
        pairs = [(row["history_speedup"] / max(1.0, row["bound"]), row) for row in rows]
        ratio, row = min(pairs, key=lambda pair: pair[0], default=(None, None))
        return {
            f"speedup_{name}": min((row["history_speedup"] for row in rows), default=None),
            f"bound_{name}": row["bound"] if row else None,
            f"of_bound_{name}": round(ratio, 3) if ratio is not None else None,
        }

    def _ties(self) -> dict[str, Any]:
        """Judges the sequences that differ."""
        ties, not_ties, farthest = 0, 0, 0.0
        if self._apart:
            phase("judging sequences that differ")
            referee = Referee(Path(self._spec.model_dir), self._spec.dtype, CONTEXT, self._spec.device)
            for prompt, plain, drafted in self._apart:
                place = first_difference(plain, drafted)
                assert place is not None
                distance = referee.distance(
                    prompt.ids + plain[:place],
                    (plain[place], drafted[place]),
                    prompt.temperature,
                    prompt.seed,
                )
                farthest = max(farthest, distance)
                near = distance <= NEAR[self._spec.dtype]
                ties, not_ties = ties + near, not_ties + (not near)
        return {"ties": ties, "not_ties_max": float(not_ties), "farthest_tie": farthest}
