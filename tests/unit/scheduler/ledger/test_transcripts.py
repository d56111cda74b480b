"""Checks which conversations are asked for, and how they are kept in bounded size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.obs.metrics import read_lines
from earl.transcript import TEXT_BYTES, TOKEN_BYTES, TOKENS, TURNS, Sampled, TranscriptTurn, shortened
from earl.v1 import scheduler_pb2
from services.scheduler.api.codec_transcripts import decode_transcript
from services.scheduler.files.samples import SampleFile, thinned
from services.scheduler.ledger.transcripts import is_chosen, is_requested
from services.scheduler.state.mixture import group_size_at
from services.scheduler.state.rules import Share
from services.scheduler.state.stored import decode, encode
from services.scheduler.state.tickets import EpisodeResult, Purpose, Ticket
from tests.support.ledger import RULES


@given(st.integers(1, 200), st.integers(0, 20))
def test_the_chosen_are_as_many_as_wanted_with_the_first_and_the_last(total: int, wanted: int) -> None:
    chosen = [position for position in range(total) if is_chosen(position, total, wanted)]
    assert len(chosen) == min(wanted, total)
    if wanted:
        assert chosen[0] == 0
    if wanted > 1:
        assert chosen[-1] == total - 1


def test_every_batch_and_every_evaluation_is_asked_in_the_same_places() -> None:
    def places(purpose: Purpose, indices: range) -> list[tuple[int, int]]:
        rules = replace(RULES, batch_groups=3, group_size=4, transcripts=2)
        return [
            (index, member)
            for index in indices
            for member in range(4 if purpose is Purpose.TRAIN else 1)
            if is_requested(rules, purpose, index, member, 10)
        ]

    assert places(Purpose.TRAIN, range(3)) == [(0, 0), (0, 1)]
    assert places(Purpose.TRAIN, range(3, 6)) == [(3, 0), (3, 1)]
    assert places(Purpose.EVALUATE, range(10)) == [(0, 0), (9, 0)]
    assert places(Purpose.WARMUP, range(10)) == []


class CountedShares(tuple[Share, ...]):
    """A mixture that counts how often one of its environments is looked up."""

    looked_up = 0

    def __getitem__(self, place: Any) -> Any:
        CountedShares.looked_up += 1
        return super().__getitem__(place)


def test_a_mixture_s_places_are_counted_no_further_than_the_requests_reach() -> None:
    """Each ticket of a large batch is looked at: counting all groups before it is quadratic work."""
    mixture = CountedShares((Share("a", 0.5, 2), Share("b", 0.5, 4)))
    rules = replace(RULES, batch_groups=1000, transcripts=5, mixture=mixture)
    requested = []
    for index in range(1000, 2000):
        size = group_size_at(rules, Purpose.TRAIN, index)
        requested += [is_requested(rules, Purpose.TRAIN, index, member, 0) for member in range(size)]
    assert requested[:5] == [True] * 5 and not any(requested[5:])
    assert 0 < CountedShares.looked_up < 20_000


@given(st.text(max_size=60), st.integers(12, 60))
def test_texts_are_bounded_and_keep_head_and_tail(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short.encode()) <= most
    if len(text.encode()) <= most:
        assert short == text
    else:
        head, _, tail = short.partition(" […] ")
        assert text.startswith(head) and text.endswith(tail)


def test_what_is_no_text_becomes_one() -> None:
    assert shortened("a\ud800b") == "a?b"
    assert len(shortened("é" * TEXT_BYTES).encode()) <= TEXT_BYTES


def test_what_a_worker_sends_is_bounded() -> None:
    turn = scheduler_pb2.TranscriptTurn(role="r" * 99, text="é" * 9000, tokens=7)
    token = scheduler_pb2.SampledToken(id=5, text="y" * 99, logprob=-0.25, version=3)
    turn.sampled.extend([scheduler_pb2.SampledToken(logprob=float("nan")), *[token] * 1999])
    turns = decode_transcript(scheduler_pb2.AttemptResult(transcript=[turn] * 99))
    first = turns[0].sampled[0]
    assert len(turns[0].sampled) == TOKENS - 1 and (first.id, first.version) == (5, 3)
    assert len(first.text.encode()) <= TOKEN_BYTES
    assert len(turns) == TURNS and len(turns[0].role) == 32 and len(turns[0].text.encode()) <= TEXT_BYTES
    assert decode_transcript(scheduler_pb2.AttemptResult()) == ()


# --- the file -------------------------------------------------------------------------------

TURN = TranscriptTurn("user", "2 + 2 = ?\n<script>", 9)


def ticket(number: int, purpose: Purpose = Purpose.TRAIN, evaluation: str = "") -> Ticket:
    return Ticket(
        id=number, group=number // 4, purpose=purpose, index=number % 7, env_seed=1, sample_seed=2,
        min_version=1, temperature=1.0, evaluation=evaluation, transcript=True,
        result=EpisodeResult(reward=0.5, total_tokens=20, oldest_version=3, newest_version=4),
    )  # fmt: skip


def said(samples: SampleFile, step: int, one: Ticket, turns: tuple[TranscriptTurn, ...] = (TURN,)) -> None:
    assert one.result is not None
    samples.observe(step, one, one.result, turns)


def test_the_request_stays_with_a_ticket_through_the_store() -> None:
    again = decode("ticket", "5", encode(ticket(5)))
    assert isinstance(again, Ticket) and again.transcript


def test_training_is_written_with_the_step_that_learned_from_it_and_evaluations_at_once(
    tmp_path: Path,
) -> None:
    samples = SampleFile(tmp_path / "samples.jsonl")
    said(samples, 0, ticket(1, Purpose.EVALUATE, "start"))
    said(samples, 0, ticket(8))
    said(samples, 0, ticket(9))
    said(samples, 0, ticket(10), turns=())
    samples.trained(1, [9, 10, 11])
    samples.close()
    lines = list(read_lines(tmp_path / "samples.jsonl"))
    assert [(line["step"], line["evaluation"], line["ticket"]) for line in lines] == [
        (0, "start", 1),
        (1, "", 9),
    ]
    assert lines[1] == {
        "step": 1, "evaluation": "", "version": [3, 4], "ticket": 9, "group": 2, "index": 2, "reward": 0.5,
        "ending": "ok", "tokens": 20, "turns": [{"role": "user", "text": TURN.text, "tokens": 9}],
    }  # fmt: skip


def test_an_attempt_that_was_taken_back_is_not_written_for_the_one_that_was_trained(tmp_path: Path) -> None:
    samples = SampleFile(tmp_path / "samples.jsonl")
    said(samples, 0, ticket(9))
    said(samples, 0, ticket(9), turns=())
    samples.trained(1, [9])
    samples.close()
    assert not list(read_lines(tmp_path / "samples.jsonl"))


def test_sampled_tokens_are_kept_in_columns(tmp_path: Path) -> None:
    samples = SampleFile(tmp_path / "samples.jsonl")
    turn = TranscriptTurn("assistant", "ab", 2, (Sampled(7, "a", -0.123456, 3), Sampled(8, "b", 0.0, 4)))
    said(samples, 0, ticket(1, Purpose.EVALUATE, "start"), (turn,))
    samples.close()
    (line,) = read_lines(tmp_path / "samples.jsonl")
    assert line["turns"][0]["sampled"] == {
        "ids": [7, 8], "texts": ["a", "b"], "logprobs": [-0.1235, 0.0], "versions": [3, 4],
    }  # fmt: skip


def test_the_file_is_bounded_and_keeps_both_ends_and_an_even_spread(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    limit = 60_000
    long = TranscriptTurn("assistant", "x" * 500, 100)
    said(samples := SampleFile(path, limit), 0, ticket(1, Purpose.EVALUATE, "start"), (long,))
    for step in range(1, 1001):
        if step == 500:  # a new scheduler goes on with the file
            samples.close()
            samples = SampleFile(path, limit)
        for number in (2 * step, 2 * step + 1):
            said(samples, step - 1, ticket(number), (long,))
        samples.trained(step, [2 * step, 2 * step + 1])
        if step % 50 == 0:
            said(samples, step, ticket(5000 + step, Purpose.EVALUATE, f"step-{step}"), (long,))
        assert path.stat().st_size <= limit
    said(samples, 1000, ticket(9000, Purpose.EVALUATE, "final"), (long,))
    samples.close()
    lines = list(read_lines(path))
    names = [line["evaluation"] for line in lines if line["evaluation"]]
    assert names[0] == "start" and names[1] == "step-50" and names[-1] == "final"
    steps = [line["step"] for line in lines if not line["evaluation"]]
    assert steps[:2] == [1, 1] and steps[-1] == 1000
    gaps = [after - before for before, after in zip(steps[::2], steps[2::2], strict=False)]
    assert max(gaps) <= 64 and len(set(steps)) >= 20


def test_thinning_is_bounded_even_where_one_step_is_too_large() -> None:
    lines = [{"step": 1, "evaluation": "", "ticket": number, "text": "x" * 100} for number in range(100)]
    kept = thinned(lines, 2000)
    assert len(kept) > 5 and sum(len(json.dumps(line)) + 1 for line in kept) <= 2000
    assert kept[0] == lines[0] and kept[-1] == lines[-1]
    assert thinned([], 10) == []


@pytest.mark.parametrize("spared", [{"extra_episodes": 2}, {"min_group_size": 2}])
def test_as_many_are_kept_as_asked_for_whichever_members_are_trained(
    tmp_path: Path, spared: dict[str, int]
) -> None:
    rules = replace(RULES, batch_groups=4, group_size=4, transcripts=5, **spared)
    issued = 4 + rules.extra_episodes
    samples = SampleFile(tmp_path / "samples.jsonl")
    trained: list[int] = []
    for index in range(4):
        # The first members of each group are the slow ones, which are dropped.
        dropped = issued - (rules.min_group_size or 4)
        for member in range(dropped, issued):
            number = 1 + index * issued + member
            trained.append(number)
            if is_requested(rules, Purpose.TRAIN, index, member, 0):
                ticket = Ticket(
                    id=number, group=index, purpose=Purpose.TRAIN, index=index, env_seed=1, sample_seed=1,
                    min_version=1, temperature=1.0,
                )  # fmt: skip
                samples.observe(0, ticket, EpisodeResult(), [TranscriptTurn("assistant", "a", 1)])
    samples.trained(1, trained, rules.transcripts)
    samples.close()
    assert len(list(read_lines(tmp_path / "samples.jsonl"))) == 5
