"""samples.jsonl: a few trajectories as conversations, over the whole run, in bounded size.

A line is one trajectory: step (training steps done when it was sampled for an evaluation, the step
that learned from it otherwise), evaluation (empty for training), version (oldest and newest of its
tokens), ticket, group, index, environment (its label, in a mixture), task (its number in a task set), epoch
(from 0, of a task that is trained in epochs), seat (in a match), opponent (the frozen version that had the
other seats), reward, ending, tokens, and turns of role, text and tokens; `sampled` of a turn is what an
engine sampled: ids, texts, logprobs and versions of its first tokens. What was asked for and never trained on
has no line.
A step that was rolled back appears again: its last lines count. Past LIMIT_BYTES the file keeps the first
and the last step of training, the first and the last evaluations, and of what lies between every second,
fourth, ... one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from earl.expendable import ExpendableFile
from earl.obs.metrics import LineFile, read_lines
from earl.transcript import TranscriptTurn
from services.scheduler.state.tickets import EpisodeResult, Purpose, Ticket

LIMIT_BYTES = 4 << 20
# Conversations that wait for their batch; the oldest are forgotten first.
WAITING = 4096


class SampleFile:
    """Writes to `path`; continues where an earlier scheduler stopped."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        # By ticket; which step learns from it is not known yet.
        self._waiting: dict[int, dict[str, Any]] = {}
        self._file = LineFile(path)
        self._thinning = ExpendableFile(path)

    def observe(
        self,
        step: int,
        ticket: Ticket,
        result: EpisodeResult,
        turns: Sequence[TranscriptTurn],
        epoch: int | None = None,
        opponent: int = 0,
    ) -> None:
        """Takes an accepted episode. An evaluation's is written at once, training's once it is trained.

        step: training steps done. epoch: None if the ticket's task is in none. opponent: 0 for none.
        """
        if not turns:
            self._waiting.pop(ticket.id, None)  # of an attempt that was taken back
            return
        sample = line(step, ticket, result, turns, epoch, opponent)
        if ticket.purpose is Purpose.EVALUATE:
            self._write([sample])
            return
        self._waiting[ticket.id] = sample
        while len(self._waiting) > WAITING:
            del self._waiting[next(iter(self._waiting))]

    def trained(self, step: int, tickets: Sequence[int], most: int = WAITING) -> None:
        """The batch of a step, of these tickets, was committed; its first `most` samples are kept."""
        if self._waiting:
            samples = [self._waiting.pop(number, None) for number in tickets]
            kept = [{**sample, "step": step} for sample in samples if sample is not None]
            self._write(kept[:most])

    def close(self) -> None:
        self._file.close()

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        if not lines:
            return
        self._file.write(*lines)
        with self._thinning.written():
            if self._path.stat().st_size > self._limit_bytes:
                rewrite(self._path, thinned(list(read_lines(self._path)), self._limit_bytes // 2))
                former, self._file = self._file, LineFile(self._path)
                former.close()


def line(
    step: int,
    ticket: Ticket,
    result: EpisodeResult,
    turns: Sequence[TranscriptTurn],
    epoch: int | None = None,
    opponent: int = 0,
) -> dict[str, Any]:
    """One trajectory in the form in which it is written."""
    return {
        "step": step,
        "evaluation": ticket.evaluation,
        "version": [result.oldest_version, result.newest_version],
        "ticket": ticket.id,
        "group": ticket.group,
        "index": ticket.index,
        **({"environment": ticket.environment} if ticket.environment else {}),
        **({"task": ticket.task} if ticket.task >= 0 else {}),
        **({"epoch": epoch} if epoch is not None else {}),
        **({"seat": ticket.seat} if ticket.seats > 1 else {}),
        **({"opponent": opponent} if opponent else {}),
        "reward": result.reward,
        "ending": result.ending.value,
        "tokens": result.total_tokens,
        "turns": [turn_line(turn) for turn in turns],
    }


def turn_line(turn: TranscriptTurn) -> dict[str, Any]:
    line: dict[str, Any] = {"role": turn.role, "text": turn.text, "tokens": turn.tokens}
    if turn.sampled:
        columns = zip(*((t.id, t.text, round(t.logprob, 4), t.version) for t in turn.sampled), strict=True)
        line["sampled"] = dict(zip(("ids", "texts", "logprobs", "versions"), map(list, columns), strict=True))
    return line


def thinned(lines: Sequence[Mapping[str, Any]], limit_bytes: int) -> list[Mapping[str, Any]]:
    """Lines within `limit_bytes`, whole steps of one kind at a time: first and last, evenly between.

    The stride is the smallest power of two that will do. Where even the first and the last step
    exceed the limit, the first lines of those are left.
    """
    sizes = [len(encoded(sample).encode()) for sample in lines]
    kinds: dict[str, list[int]] = {}
    for index, sample in enumerate(lines):
        kinds.setdefault(kind(sample), []).append(index)
    stride = 1
    kept = list(range(len(lines)))
    last_step = max((int(sample["step"]) for sample in lines), default=0)
    while sum(sizes[index] for index in kept) > limit_bytes and stride <= last_step:
        stride *= 2
        kept = sorted(index for places in kinds.values() for index in _strided(lines, places, stride))
    while sum(sizes[index] for index in kept) > limit_bytes:
        del kept[len(kept) // 2]
    return [lines[index] for index in kept]


def kind(sample: Mapping[str, Any]) -> str:
    """ "start" and "final" stay by themselves; evaluations between are thinned apart from training."""
    name = str(sample["evaluation"])
    return name if name in ("", "start", "final") else "between"


def _strided(lines: Sequence[Mapping[str, Any]], places: Sequence[int], stride: int) -> list[int]:
    steps = {int(lines[index]["step"]) for index in places}
    first, last = min(steps), max(steps)
    # Evaluations between are at multiples of their first step.
    unit = max(1, first) if kind(lines[places[0]]) else 1
    kept_steps = {step for step in steps if step // unit % stride == 0} | {first, last}
    return [index for index in places if int(lines[index]["step"]) in kept_steps]


def encoded(sample: Mapping[str, Any]) -> str:
    return json.dumps(sample, ensure_ascii=False) + "\n"


def rewrite(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the file at once: readers see the old lines or the new ones."""
    scratch = path.with_suffix(".new")
    scratch.write_text("".join(encoded(sample) for sample in lines), encoding="utf-8")
    os.replace(scratch, path)
