"""Drafts change nothing that an engine answers: bit for bit where it is deterministic, else but for noise."""

import asyncio

import msgspec
import numpy as np
import pytest

from earl.config.sampling_filters import SamplingFilters
from earl.errors import EngineError
from services.rollout.engines.contract.engine import GenerateRequest, Generation
from services.rollout.engines.process.client import EngineProcess
from tests.support import engines
from tests.support.engines import CONTEXT, MODELS, SELECTED, SLOTS, ask, assert_close, prompt, recompute

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not {"torch", "vllm"} & {*SELECTED}, reason="no other engine drafts"),
]
run, model_dir, spec, weights = engines.run, engines.model_dir, engines.spec, engines.weights
own = engines.own
NEW = 120


def reference(ids: list[int]) -> bytes:
    return np.array(ids, dtype=np.int32).tobytes()


def told(answer: Generation) -> tuple:
    return answer.ids, answer.logprobs, answer.versions, answer.finish


async def play(engine: EngineProcess, requests: list[GenerateRequest], **fields) -> list[Generation]:
    """Answers to the requests, all at once; fields are put into each."""
    asked = [
        msgspec.structs.replace(ask(request.ids, request.max_new_tokens), **_fields(request), **fields)
        for request in requests
    ]
    return await asyncio.gather(*map(engine.generate_all, asked))


def _fields(request: GenerateRequest) -> dict:
    names = ("temperature", "seed", "filters", "stop_ids", "references")
    return {name: getattr(request, name) for name in names}


def requests_of(answers: list[Generation], requests: list[GenerateRequest]) -> list[GenerateRequest]:
    """The same requests with references: each one's own answer, another's, half of its own, random tokens."""
    known = [request.ids + answer.ids for request, answer in zip(requests, answers, strict=True)]
    rng = np.random.default_rng(5)
    made = []
    for number, request in enumerate(requests):
        other = known[(number + 1) % len(known)]
        half = known[number][: len(request.ids) + NEW // 2] + prompt(40, number)
        noise = rng.integers(0, 61, 300).tolist()
        choice = [[known[number]], [other], [half, other], [noise]][number % 4]
        made.append(msgspec.structs.replace(request, references=list(map(reference, choice))))
    return made


def requests_with_filters() -> list[GenerateRequest]:
    """Each row of a draft has the penalty of the tokens before it."""
    filters = (SamplingFilters(), SamplingFilters(repetition_penalty=1.2, top_k=30, top_p=0.9))
    return [
        ask(
            prompt(9 + 7 * n, n), NEW, seed=n, temperature=(0.0, 1.0, 0.7, 1.3)[n % 4], stop_ids=[n % 61],
            filters=filters[n // 4 % 2],
        )
        for n in range(2 * SLOTS)
    ]  # fmt: skip


async def test_a_deterministic_engine_answers_bit_for_bit_the_same(own, spec):
    if spec.engine != "torch":
        pytest.skip("no other engine is deterministic")
    plain = await own(deterministic=True, drafts=False)
    drafting = await own(
        deterministic=True, drafts=True, max_sequences=32, kv_tokens=CONTEXT, prefill_tokens=60
    )
    requests = requests_with_filters()
    wanted = await play(plain, requests)
    answers = await play(drafting, requests_of(wanted, requests))
    assert list(map(told, answers)) == list(map(told, wanted))
    await check_counts(drafting, answers)
    assert (await plain.stats()).drafts.figures() == {}


async def test_an_engine_answers_the_same_but_for_noise(own):
    plain = await own(drafts=False)
    drafting = await own(drafts=True, max_sequences=32, kv_tokens=CONTEXT, prefill_tokens=60)
    requests = requests_with_filters()
    wanted = await play(plain, requests)
    answers = await play(drafting, requests_of(wanted, requests))
    for answer, other in zip(answers, wanted, strict=True):
        assert (answer.ids, answer.versions, answer.finish) == (other.ids, other.versions, other.finish)
        assert_close(answer.logprobs, other.logprobs)
    await check_counts(drafting, answers)


async def check_counts(drafting: EngineProcess, answers: list[Generation]) -> None:
    stats = await drafting.stats()
    assert 0 < stats.drafts.accepted_tokens < stats.drafts.drafted_tokens
    # Counters are handed over once.
    assert (await drafting.stats()).drafts.drafted_tokens == 0
    assert stats.generated_tokens == sum(len(answer.ids) for answer in answers) == stats.drafts.tokens
    # Without a draft a sequence has a token of each step.
    assert stats.drafts.tokens == stats.drafts.steps + stats.drafts.accepted_tokens


async def test_a_known_answer_takes_fewer_steps_and_a_stream_says_the_same(own):
    engine = await own(drafts=True, max_sequences=32)
    request = ask(prompt(20), NEW, seed=3)
    wanted = await engine.generate_all(request)
    before = await engine.stats()
    again = msgspec.structs.replace(
        request, request_id="again", references=[reference(request.ids + wanted.ids)]
    )
    chunks = [chunk async for chunk in engine.generate(again)]
    assert [token for chunk in chunks for token in chunk.ids] == wanted.ids
    assert_close([value for chunk in chunks for value in chunk.logprobs], wanted.logprobs)
    assert [chunk.finish for chunk in chunks] == [""] * (len(chunks) - 1) + ["length"]
    assert len(chunks) < NEW / 3
    after = await engine.stats()
    assert after.steps - before.steps < NEW / 3
    assert after.drafts.accepted_tokens > NEW / 2


async def test_drafts_reach_to_the_end_of_the_context(own):
    engine = await own(drafts=True, max_sequences=32)
    ids = prompt(CONTEXT - 60)
    # Another sequence is far from its end.
    other = asyncio.create_task(engine.generate_all(ask(prompt(8, 1), NEW, seed=1)))
    wanted = await engine.generate_all(ask(ids, 60, seed=3))
    again = await engine.generate_all(ask(ids, 60, seed=3, references=[reference(ids + wanted.ids)]))
    assert again.ids == wanted.ids and len(wanted.ids) == 60
    assert_close(again.logprobs, recompute(MODELS[0], ids, again.ids))
    assert len((await other).ids) == NEW
    assert (await engine.stats()).drafts.accepted_tokens > 30


async def test_prompts_that_are_there_but_for_their_last_token_answer_the_same(own):
    engine = await own(drafts=True, max_sequences=32)
    for length in (1, 17, 33, 65):
        request = ask(prompt(length), 6, seed=length)
        first = await engine.generate_all(request)
        again = await engine.generate_all(msgspec.structs.replace(request, request_id=f"again {length}"))
        assert first.ids == again.ids
        assert_close(again.logprobs, recompute(MODELS[0], request.ids, again.ids))


async def test_a_session_continues_after_accepted_and_rejected_drafts(own):
    engine = await own(drafts=True, max_sequences=32)
    rng = np.random.default_rng(2)

    async def episode(session: str, references: list[bytes]) -> tuple[list[int], list[float]]:
        ids, logprobs = [], []
        for turn in range(4):
            ids += prompt(10, turn)
            answer = await engine.generate_all(ask(ids, 30, seed=7, session=session, references=references))
            ids, logprobs = ids + answer.ids, logprobs + answer.logprobs
        await engine.release(session)
        return ids, logprobs

    wanted, logprobs = await episode("", [])
    wrong = list(wanted)
    for place in rng.integers(0, len(wrong), 12).tolist():
        wrong[place] = (wrong[place] + 1) % 61
    for references in ([reference(wanted)], [reference(wrong)]):
        ids, again = await episode("s", references)
        assert ids == wanted
        assert_close(again, logprobs)
    assert (await engine.stats()).drafts.accepted_tokens > 60


@pytest.mark.parametrize("wrong", [b"abc", reference([3, 61]), reference([-1])])
async def test_a_reference_that_is_no_tokens_is_refused_and_ends_nothing(own, wrong):
    engine = await own(drafts=True)
    with pytest.raises(EngineError, match="reference"):
        await engine.generate_all(ask(prompt(4), 4, references=[wrong]))
    assert (await engine.generate_all(ask(prompt(4), 4))).finish == "length"


async def test_no_draft_is_of_two_versions(own, weights):
    """Each token is of the version that it names, though new weights arrive while drafts are accepted."""
    engine = await own(drafts=True, kv_on_update="recompute", max_sequences=32)
    ids = prompt(6)
    wanted = await engine.generate_all(ask(ids, 600, seed=8))
    version, keys = await weights.publish(MODELS[1])
    await engine.begin_update(version)
    await engine.load(version, keys, 30.0)
    tokens, logprobs, versions = [], [], []
    request = ask(ids, 600, seed=8, references=[reference(ids + wanted.ids)])
    async for chunk in engine.generate(request):
        tokens, logprobs = tokens + chunk.ids, logprobs + chunk.logprobs
        versions += chunk.versions
        if len(versions) == len(chunk.ids):
            await engine.commit(version)
        if versions.count(version) >= 20:
            await engine.abort(request.request_id)
    assert versions == sorted(versions) and set(versions) == {0, version}
    old = versions.count(0)
    assert tokens[:old] == wanted.ids[:old]
    assert_close(logprobs[:old], recompute(MODELS[0], ids, tokens[:old]))
    assert_close(logprobs[old:], recompute(MODELS[1], ids + tokens[:old], tokens[old:]))
    await weights.remove(keys)
