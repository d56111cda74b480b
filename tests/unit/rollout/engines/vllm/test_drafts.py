"""Drafts in vLLM, over a stand-in for its runner: what is drafted, and that no token depends on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from earl.config.sampling_filters import SamplingFilters
from services.rollout.engines.drafts.policy import MOST_DRAFTED
from tests.support.foreign_engines import install_vllm

VOCABULARY, LONGEST, SLOTS = 20, 200, 8
OURS = ("services.rollout.engines.vllm.sampler", "services.rollout.engines.vllm.drafts")


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    install_vllm(monkeypatch)
    for name in OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    from services.rollout.engines.vllm import drafts, sampler

    yield SimpleNamespace(drafts=drafts, sampler=sampler)
    for name in OURS:
        sys.modules.pop(name, None)


class Runner:
    """vLLM's runner as far as drafts see it; the logits behind a token are a row of a table."""

    def __init__(self, modules: Any, requests: dict[str, SimpleNamespace], *, drafting: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self._table = 3 * torch.randn(VOCABULARY, VOCABULARY, generator=generator)
        self.requests = requests
        self.input_batch = SimpleNamespace(num_reqs=0, req_ids=[])
        self.sampler = modules.sampler.SeededSampler(self)
        self.rejection_sampler: Any = None
        self.steps = 0
        self._drafts: dict[str, list[int]] = {}
        self.drafter: Any = None
        if drafting:
            config = SimpleNamespace(
                scheduler_config=SimpleNamespace(max_num_seqs=SLOTS),
                model_config=SimpleNamespace(max_model_len=LONGEST),
                speculative_config=SimpleNamespace(num_speculative_tokens=MOST_DRAFTED),
            )
            self.drafter = modules.drafts.RequestDrafter(config)
            self.drafter.bind(self)

    def execute_model(self, scheduler_output: Any) -> None:
        self.steps += 1

    def step(self) -> None:
        """One step of all requests that have not ended, as vLLM's runner and scheduler take it."""
        names = [name for name, each in self.requests.items() if not each.ended]
        tokens = np.zeros((len(names), LONGEST), dtype=np.int32)
        contexts = [self.requests[name].prompt + self.requests[name].output_token_ids for name in names]
        for row, ids in enumerate(contexts):
            tokens[row, : len(ids)] = ids
        lengths = np.array(list(map(len, contexts)), dtype=np.int32)
        self.input_batch = SimpleNamespace(
            num_reqs=len(names), req_ids=names, num_tokens_no_spec=lengths, token_ids_cpu=tokens
        )
        drafts = [self._drafts.get(name, []) for name in names]
        rows = [token for ids, draft in zip(contexts, drafts, strict=True) for token in (ids[-1], *draft)]
        self.execute_model(SimpleNamespace(total_num_scheduled_tokens=len(rows)))
        logits = self._table[rows]
        if self.drafter is None:
            output = self.sampler.forward(logits, None)
        else:
            flat = [token for draft in drafts for token in draft]
            numbers = list(map(len, drafts))
            metadata = SimpleNamespace(
                num_draft_tokens=numbers, draft_token_ids=torch.tensor(flat, dtype=torch.int32)
            )
            output = self.rejection_sampler(metadata, None, logits, None)
        sampled = [[token for token in row if token >= 0] for row in output.sampled_token_ids.tolist()]
        logprobs = output.logprobs_tensors.values[1].reshape(len(names), -1).tolist()
        for row, (name, ids) in enumerate(zip(names, sampled, strict=True)):
            request, length = self.requests[name], lengths[row]
            request.output_token_ids += ids
            request.logprobs += logprobs[row][: len(ids)]
            tokens[row, length : length + len(ids)] = ids
            params = request.sampling_params
            request.ended = ids[-1] in params.stop_token_ids
            request.ended |= len(request.output_token_ids) >= params.max_tokens
        if self.drafter is not None:
            lengths += np.array(list(map(len, sampled)), dtype=np.int32)
            proposed = self.drafter.propose(sampled, lengths, tokens, slot_mappings=None)
            self._drafts = dict(zip(names, proposed, strict=True))

    def play(self) -> None:
        while not all(request.ended for request in self.requests.values()):
            self.step()


def requests(references: dict[str, list[int]]) -> dict[str, SimpleNamespace]:
    made = {}
    for number in range(6):
        known = references.get(str(number), [])
        filters = SamplingFilters(repetition_penalty=1.3, top_k=9) if number % 3 == 2 else SamplingFilters()
        options = {
            "temperature": (1.0, 0.0, 0.7)[number % 3], "seed": number, "filters": filters.active,
            "references": [np.array(known, np.int32).tobytes()] if known else [], "task_references": 1,
        }  # fmt: skip
        made[str(number)] = SimpleNamespace(
            prompt=[number, 3, 4], output_token_ids=[], logprobs=[], ended=False,
            sampling_params=SimpleNamespace(
                extra_args=options, max_tokens=40 + number, stop_token_ids=[] if number else [7]
            ),
        )  # fmt: skip
    return made


def test_answers_do_not_depend_on_drafts_and_much_of_known_ones_is_accepted(drafts: Any) -> None:
    plain = Runner(drafts, requests({}), drafting=False)
    plain.play()
    known = {name: each.prompt + each.output_token_ids for name, each in plain.requests.items()}
    # Of one answer only half is known, of another something else.
    known["1"] = known["1"][:20] + [5] * 20
    known["2"] = known["3"]
    drafting = Runner(drafts, requests(known), drafting=True)
    drafting.play()
    for name, request in drafting.requests.items():
        assert request.output_token_ids == plain.requests[name].output_token_ids
        assert request.logprobs == pytest.approx(plain.requests[name].logprobs, abs=1e-5)
    counts = drafting.drafter.drafting.take()
    assert counts.tokens == sum(len(each.output_token_ids) for each in drafting.requests.values())
    assert counts.tokens == counts.steps + counts.accepted_tokens
    assert counts.tokens / 3 < counts.accepted_tokens < counts.drafted_tokens


def test_what_vllm_puts_in_the_place_of_a_draft_is_verified_and_not_counted(drafts: Any) -> None:
    asked = requests({})
    plain = Runner(drafts, requests({}), drafting=False)
    plain.play()
    runner = Runner(drafts, asked, drafting=True)
    runner.step()
    runner.drafter.drafting.take()
    runner._drafts = {name: [0, 0] for name in asked}
    runner.step()
    assert runner.drafter.drafting.take().drafted_tokens == 0
    runner.play()
    assert [each.output_token_ids for each in asked.values()] == [
        each.output_token_ids for each in plain.requests.values()
    ]


def test_a_request_that_a_step_leaves_out_keeps_its_slot_and_its_draft(drafts: Any) -> None:
    plain = Runner(drafts, requests({}), drafting=False)
    plain.play()
    known = {name: each.prompt + each.output_token_ids for name, each in plain.requests.items()}
    runner = Runner(drafts, requests(known), drafting=True)
    for _ in range(3):
        runner.step()
    slot, made = runner.drafter._slots["1"], runner.drafter._made["1"]
    runner.requests["1"].ended = True
    runner.step()
    assert (runner.drafter._slots["1"], runner.drafter._made["1"]) == (slot, made)
    runner.requests["1"].ended = False
    runner.play()
    counts = runner.drafter.drafting.take()
    assert counts.tokens == counts.steps + counts.accepted_tokens
    for name, request in runner.requests.items():
        assert request.output_token_ids == plain.requests[name].output_token_ids


def test_slots_go_to_the_requests_of_the_batch(drafts: Any) -> None:
    runner = Runner(drafts, requests({}), drafting=True)
    for wave in range(3):
        runner.requests = {f"{wave}-{name}": each for name, each in requests({}).items()}
        runner.play()
    free, taken = runner.drafter._free, runner.drafter._slots
    assert sorted([*free, *taken.values()]) == list(range(SLOTS))


@pytest.mark.parametrize(
    ("sampled", "drafted", "stops", "count"),
    [([4], [], (), 1), ([4, 5], [4], (), 2), ([4, 5], [3], (), 1), ([4, 5, 6], [4, 5], (5,), 2)],
)
def test_rows_count_up_to_the_first_that_was_not_drafted_or_ends_the_answer(
    drafts: Any, sampled: list[int], drafted: list[int], stops: tuple[int, ...], count: int
) -> None:
    assert drafts.drafts.agreed(np.array(sampled), np.array(drafted), stops) == count
