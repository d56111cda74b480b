"""Checks what every engine promises (engines/contract/engine.py): sampling, sessions and the queue."""

import asyncio

import numpy as np
import pytest
import torch

from earl.config.sampling_filters import SamplingFilters
from earl.errors import (
    ContextTooLong,
    EngineBusy,
    EngineError,
)
from services.rollout.engines.contract.engine import GenerateRequest
from tests.support import engines
from tests.support.engines import (
    CONTEXT,
    MODELS,
    SLOTS,
    TRAITS,
    WAITING,
    ask,
    assert_close,
    needs,
    prompt,
    recompute,
    steady,
    whole_blocks,
)
from tests.support.processors import processors

pytestmark = pytest.mark.asyncio(loop_scope="module")
run, model_dir, spec = engines.run, engines.model_dir, engines.spec
shared = engines.shared


# --- what is sampled ------------------------------------------------------------------------------


async def test_greedy_equals_transformers(shared):
    ids = prompt(11)
    generation = await shared.generate_all(ask(ids, 16, temperature=0.0))
    with torch.no_grad():
        wanted = MODELS[0].generate(
            torch.tensor([ids]), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(ids) :]
    assert generation.ids == wanted.tolist()
    assert generation.finish == "length" and generation.versions == [0] * 16


async def test_logprobs_are_of_the_tempered_distribution(shared):
    requests = [ask(prompt(5 + 7 * n, n), 12, temperature=0.5 + 0.5 * n, seed=n) for n in range(4)]
    generations = await asyncio.gather(*map(shared.generate_all, requests))
    for request, generation in zip(requests, generations, strict=True):
        assert_close(
            generation.logprobs, recompute(MODELS[0], request.ids, generation.ids, request.temperature)
        )


async def test_a_seed_reproduces_whatever_it_is_batched_with(shared):
    needs(shared, "reproduces_seeds", "its sampling takes no seeds on this device")

    def request(seed: int) -> GenerateRequest:
        return ask(prompt(9), 20, seed=seed)

    alone = [await shared.generate_all(request(seed)) for seed in range(3)]
    assert len({tuple(generation.ids) for generation in alone}) == 3
    others = [ask(prompt(3 + 5 * n, n), 5 + n, seed=100 + n) for n in range(9)]
    mixed = await asyncio.gather(
        *(
            shared.generate_all(r)
            for pair in zip(others[:3], map(request, range(3)), strict=True)
            for r in pair
        ),
        *(shared.generate_all(r) for r in others[3:]),
    )
    for ours, wanted in zip(mixed[1:6:2], alone, strict=True):
        assert ours.ids == wanted.ids
        assert_close(ours.logprobs, wanted.logprobs)


async def test_samples_follow_the_distribution(shared):
    ids, room = prompt(4), asyncio.Semaphore(WAITING)

    async def draw(seed: int) -> int:
        async with room:
            return (await shared.generate_all(ask(ids, 1, seed=seed))).ids[0]

    draws = await asyncio.gather(*map(draw, range(2000)))
    found = np.bincount(draws, minlength=61) / len(draws)
    with torch.no_grad():
        wanted = MODELS[0](torch.tensor([ids])).logits[0, -1].softmax(-1).numpy()
    # Half the L1 distance of 2,000 draws over 61 outcomes is about 0.07.
    assert 0.5 * np.abs(found - wanted).sum() < 0.12


async def test_filters_are_those_of_transformers(shared):
    """Each token is one of those that transformers' processors keep, with its log-prob among them."""
    needs(shared, "filters", "its log-probs are not over the kept tokens")
    chosen = [
        SamplingFilters(top_k=5),
        SamplingFilters(top_p=0.6),
        SamplingFilters(min_p=0.2),
        SamplingFilters(top_k=20, top_p=0.8, min_p=0.05, repetition_penalty=1.5),
        SamplingFilters(),
    ]
    requests = [
        ask(prompt(8, n), 10, temperature=0.8, seed=n, filters=filters) for n, filters in enumerate(chosen)
    ]
    generations = await asyncio.gather(*map(shared.generate_all, requests))
    for request, generation in zip(requests, generations, strict=True):
        for count, token in enumerate(generation.ids):
            ids = torch.tensor([request.ids + generation.ids[:count]])
            with torch.no_grad():
                logits = MODELS[0](ids).logits[:, -1].double()
            kept = processors(request.filters, 0.8)(ids, logits).log_softmax(-1)
            assert abs(float(kept[0, token]) - generation.logprobs[count]) < 1e-4


async def test_a_penalty_holds_for_greedy_decoding(shared):
    """The penalty sees the prompt and the earlier turns; the other filters cannot change the likeliest."""
    needs(shared, "filters", "its log-probs are not over the kept tokens")
    filters = SamplingFilters(repetition_penalty=1.3, top_k=1, top_p=0.1, min_p=0.9)
    ids = prompt(11)
    with torch.no_grad():
        expected = MODELS[0].generate(
            torch.tensor([ids]), max_new_tokens=16, do_sample=False, repetition_penalty=1.3,
            eos_token_id=None, pad_token_id=0,
        )[0, len(ids) :].tolist()  # fmt: skip
    first = await shared.generate_all(ask(ids, 6, temperature=0.0, filters=filters, session="penalty"))
    rest = ask(ids + first.ids, 10, temperature=0.0, filters=filters, session="penalty")
    second = await shared.generate_all(rest)
    await shared.release("penalty")
    assert first.ids + second.ids == expected
    plain = await shared.generate_all(ask(ids, 16, temperature=0.0))
    assert plain.ids != expected


async def test_stop_ids_end_a_generation(shared):
    free = await shared.generate_all(ask(prompt(6), 12, seed=4, **steady(shared)))
    stop = free.ids[5]
    stopped = await shared.generate_all(
        ask(prompt(6), 12, seed=4, stop_ids=[60, 59, 58, stop], **steady(shared))
    )
    at = free.ids.index(stop)
    assert stopped.ids == free.ids[: at + 1] and stopped.finish == "stop"


async def test_a_stream_says_the_same(shared):
    request = ask(prompt(6), 12, seed=4, **steady(shared))
    chunks = [chunk async for chunk in shared.generate(request)]
    whole = await shared.generate_all(ask(prompt(6), 12, seed=4, **steady(shared)))
    assert [token for chunk in chunks for token in chunk.ids] == whole.ids
    assert [chunk.finish for chunk in chunks] == [""] * (len(chunks) - 1) + ["length"]


# --- sessions, slots and the queue ----------------------------------------------------------------


async def test_a_session_reuses_its_prefix_and_changes_nothing(shared):
    async def episode(session: str) -> tuple[list[int], list[float], int]:
        ids, logprobs, reused = [], [], 0
        for turn in range(4):
            ids += prompt(10, turn)
            generation = await shared.generate_all(ask(ids, 4, seed=7, session=session, **steady(shared)))
            ids, reused = ids + generation.ids, reused + generation.reused_tokens
            logprobs += generation.logprobs
        await shared.release(session)
        return ids, logprobs, reused

    wanted, logprobs, _ = await episode("")
    ours, again, reused = await episode("episode")
    assert ours == wanted
    assert_close(again, logprobs)
    # Everything but each turn's last token, which was sampled and not yet computed.
    own = sum(whole_blocks(shared, tokens - 1) for tokens in (14, 28, 42))
    assert reused >= own > 0
    assert (await shared.stats()).retained == 0


async def test_a_session_may_go_back(shared):
    same_tokens = 7 + TRAITS[shared.spec.engine].prefix_block_tokens
    ids = prompt(same_tokens + 4)
    await shared.generate_all(ask(ids, 4, seed=1, session="back"))
    changed = [*ids[:same_tokens], (ids[same_tokens] + 1) % 61, 2, 3]
    second = await shared.generate_all(ask(changed, 4, seed=1, session="back", **steady(shared)))
    assert second.reused_tokens == whole_blocks(shared, same_tokens) > 0
    assert_close(second.logprobs, recompute(MODELS[0], changed, second.ids))
    same = await shared.generate_all(ask(changed, 4, seed=1, session="back", **steady(shared)))
    assert same.ids == second.ids and same.reused_tokens == whole_blocks(shared, len(changed) - 1)
    await shared.release("back")


async def test_idle_sessions_make_room(shared):
    needs(shared, "counts_sessions", "its cache drops blocks, of whichever session they were")
    before = (await shared.stats()).evicted_sessions
    for n in range(SLOTS + 2):
        await shared.generate_all(ask(prompt(6, n), 2, session=f"idle-{n}"))
    stats = await shared.stats()
    assert stats.retained == SLOTS and stats.evicted_sessions == before + 2
    # The first is gone, the last is there.
    last = await shared.generate_all(ask(prompt(6, SLOTS + 1), 2, session=f"idle-{SLOTS + 1}"))
    first = await shared.generate_all(ask(prompt(6, 0), 2, session="idle-0"))
    assert (last.reused_tokens, first.reused_tokens) == (5, 0)
    for n in range(SLOTS + 2):
        await shared.release(f"idle-{n}")
    assert (await shared.stats()).kv_used_fraction == 0


async def test_requests_queue_beyond_the_slots_and_are_refused_beyond_the_queue(shared):
    await shared.pause()
    tasks = [
        asyncio.create_task(shared.generate_all(ask(prompt(5, n), 3, seed=n, **steady(shared))))
        for n in range(WAITING + 2)
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert (await shared.stats()).waiting == WAITING
    await shared.resume()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [r for r in results if isinstance(r, BaseException)]
    assert len(refused) == 2 and all(isinstance(r, EngineBusy) for r in refused)
    for n, generation in enumerate(results[:WAITING]):
        assert not isinstance(generation, BaseException)
        assert (
            generation.ids == (await shared.generate_all(ask(prompt(5, n), 3, seed=n, **steady(shared)))).ids
        )


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (ask(prompt(CONTEXT - 3), 4), ContextTooLong, "1021 tokens and 4"),
        (ask([], 4), EngineError, "0 tokens"),
        (ask([1], 0), EngineError, "0 new"),
        (ask([1, 61], 4), EngineError, "token id 61"),
        (ask([1, -1], 4), EngineError, "token id -1"),
        (ask([1], 4, answered=2), EngineError, "answered 2 of a request of 1"),
        (ask([1], 4, temperature=float("nan")), EngineError, "temperature nan"),
        (ask([1], 4, filters=SamplingFilters(top_k=-1)), EngineError, "top_k -1"),
        (ask([1], 4, filters=SamplingFilters(top_p=0.0)), EngineError, "top_p 0.0"),
        (ask([1], 4, filters=SamplingFilters(top_p=float("nan"))), EngineError, "top_p nan"),
        (ask([1], 4, filters=SamplingFilters(min_p=1.5)), EngineError, "min_p 1.5"),
        (ask([1], 4, filters=SamplingFilters(repetition_penalty=0.0)), EngineError, "repetition_penalty 0.0"),
    ],
)
async def test_bad_requests_are_refused_alone(shared, request_, error, words):
    good = asyncio.create_task(shared.generate_all(ask(prompt(5), 4)))
    with pytest.raises(error, match=words) as caught:
        await shared.generate_all(request_)
    assert caught.value.remedy
    with pytest.raises(error):
        async for _ in shared.generate(request_):
            pass
    assert len((await good).ids) == 4


async def test_the_whole_context_is_usable(shared):
    ids = prompt(CONTEXT - 4)
    generation = await shared.generate_all(ask(ids, 4, seed=3))
    assert len(generation.ids) == 4
    assert_close(generation.logprobs, recompute(MODELS[0], ids, generation.ids))
