"""Drafts: where they come from, when they are made, and that no token depends on them."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.draft_figures import DRAFTED_ROWS
from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.contract.stop_texts import StopTexts
from services.rollout.engines.drafts.lookup import LONGEST, DraftLookup, matches
from services.rollout.engines.drafts.policy import (
    FORGOTTEN,
    MOST_DRAFTED,
    REST,
    TRIALS,
    DraftPolicy,
    StepCost,
)
from services.rollout.engines.torch.scheduler import SequenceScheduler


def reference(*ids: int) -> bytes:
    return np.array(ids, dtype=np.int32).tobytes()


def propose(references: list[bytes], ids: list[int], most: int = 16) -> list[int]:
    return DraftLookup(references).propose(np.array(ids, dtype=np.int64), most).tokens


# --- lookup -----------------------------------------------------------------------------------


def test_a_draft_is_what_followed_the_same_tokens():
    assert propose([reference(1, 2, 3, 4, 5, 6)], [9, 2, 3, 4]) == [5, 6]
    assert propose([reference(1, 2, 3, 4, 5, 6)], [9, 2, 3, 4], most=1) == [5]


def test_a_sequence_is_its_own_reference():
    assert propose([], [1, 2, 3, 4, 7, 1, 2, 3]) == [4, 7, 1, 2, 3]


def test_the_longest_equal_suffix_decides():
    assert propose([reference(2, 3, 4, 50), reference(1, 2, 3, 4, 60)], [1, 2, 3, 4]) == [60]
    # The sequence's own place is longer.
    assert propose([reference(2, 3, 4, 50)], [1, 2, 3, 4, 70, 1, 2, 3, 4])[:1] == [70]


def test_most_places_decide_and_the_first_of_equals():
    three = [reference(1, 2, 3, 5), reference(1, 2, 3, 6), reference(1, 2, 3, 6)]
    assert propose(three, [1, 2, 3]) == [6]
    assert propose(three[:2], [1, 2, 3]) == [5]


def test_a_draft_ends_where_places_no_longer_agree():
    five = [reference(1, 2, 3, 4, *range(10 * n, 10 * n + 3)) for n in range(1, 6)]
    assert propose(five, [1, 2, 3]) == [4]


def test_no_draft_crosses_from_a_reference_to_the_next():
    assert propose([reference(1, 2, 3), reference(4, 5, 6)], [1, 2, 3]) == []
    assert propose([reference(1, 2), reference(3, 9)], [1, 2, 3]) == []


@pytest.mark.parametrize("ids", [[], [1], [1, 2], [8, 9, 10]])
def test_nothing_is_drafted_where_nothing_is_known(ids):
    assert propose([reference(1, 2, 3, 4)], ids) == []
    assert propose([], ids) == []


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.integers(0, 3), min_size=1, max_size=LONGEST + 4),
)
def test_matches_equals_a_search_place_by_place(tokens, ids):
    tail = ids[-LONGEST:]
    places, length = matches(np.array(tokens, dtype=np.int64), np.array(tail, dtype=np.int64))

    def common(end: int) -> int:
        for number in range(min(end, len(tail))):
            if tokens[end - 1 - number] != tail[-1 - number]:
                return number
        return min(end, len(tail))

    lengths = {end: common(end) for end in range(1, len(tokens) + 1)}
    longest = max(lengths.values(), default=0)
    assert length == longest
    assert places.tolist() == [end for end, equal in lengths.items() if equal == longest and longest]


# --- policy -----------------------------------------------------------------------------------


def priced(seconds_a_row: float, fixed_s: float) -> DraftPolicy:
    policy = DraftPolicy(4)
    for rows in range(1, 100):
        seconds = fixed_s + rows * seconds_a_row
        # Many times as long the first time.
        policy.took(rows, 30 * seconds)
        policy.took(rows, seconds)
    return policy


def chosen(policy: DraftPolicy, slots: list[int], drafted: list[int], rows: int) -> list[int]:
    return policy.chosen(slots, drafted, rows).tolist()


def test_drafts_are_made_where_rows_cost_little_and_not_where_they_cost_all():
    assert chosen(priced(0.0001, 0.1), [0, 1], [4, 4], 2) == [4, 4]
    assert chosen(priced(0.1, 0.0), [0, 1], [4, 4], 2) == [0, 0]
    # Before anything was measured they are made, and measured by it.
    assert chosen(DraftPolicy(2), [0, 1], [4, 0], 2) == [4, 0]


def test_more_is_drafted_while_it_is_accepted_and_less_otherwise():
    policy = priced(0.01, 0.1)
    lengths = [chosen(policy, [0], [16], 1)[0]]
    for _ in range(12):
        policy.note(0, lengths[-1], lengths[-1])
        lengths.append(chosen(policy, [0], [16], 1)[0])
    assert 0 < lengths[0] < lengths[-1] == 16 and lengths == sorted(lengths)
    for _ in range(3):
        policy.note(0, 16, 2)
    assert chosen(policy, [0], [16], 1)[0] < 16


def test_the_likeliest_tokens_of_all_sequences_are_drafted():
    for slots, drafted, wanted in (
        ([0, 1, 2], [4, 4, 0], [4, 0, 0]),
        ([2, 1, 0], [0, 4, 4], [0, 0, 4]),
    ):
        policy = priced(0.02, 0.3)
        for _ in range(20):
            policy.note(0, 4, 4)
            policy.note(1, 4, 0)
        assert chosen(policy, slots, drafted, 4) == wanted


def test_quick_sequences_do_not_slow_down_the_others_more_than_they_gain():
    policy = priced(0.01, 0.1)
    for _ in range(20):
        policy.note(0, 8, 8)
        policy.note(1, 1, 0)
    alone = chosen(policy, [0], [16], 1)[0]
    beside = chosen(policy, [0, 1, 2, 3], [16, 0, 0, 0], 4)[0]
    assert 0 < beside < alone == 16


def test_a_sequence_whose_draft_does_not_pay_rests_longer_each_time_and_then_tries_one_token():
    policy = priced(0.1, 0.0)
    rests = []
    for _ in range(4):
        assert chosen(policy, [0], [8], 1) == [0]
        rests.append(rest(policy))
        # After the rest, whatever is expected.
        assert chosen(policy, [0], [1], 1) == [1]
        policy.note(0, 1, 0)
    assert rests == [REST, 2 * REST, 4 * REST, 8 * REST]
    assert policy.most(1) == MOST_DRAFTED


def rest(policy: DraftPolicy) -> int:
    """Steps that slot 0 rests."""
    return next(step for step in itertools.count() if policy.most(0) > 0)


def test_drafts_begin_again_once_a_try_is_accepted():
    policy = priced(0.02, 0.1)
    for _ in range(20):
        policy.note(0, 4, 0)
    assert chosen(policy, [0], [4], 1) == [0]
    rest(policy)
    assert chosen(policy, [0], [1], 1) == [1]
    policy.note(0, 1, 1)
    assert chosen(policy, [0], [4], 1)[0] > 1


def test_trials_take_at_most_their_part_of_the_time():
    """Each slot has a new sequence every 96 steps, and every step that drafts takes half as long again."""
    policy, slots, tried = DraftPolicy(8), list(range(8)), 0.0
    for rows, seconds in [(8, 0.1)] * 3 + [(9, 0.15)] * 3:
        policy.took(rows, seconds)
    for slot in slots * 20:
        policy.note(slot, 4, 0)
    for step in range(1, 4000):
        for slot in slots:
            if (step + 12 * slot) % 96 == 0:
                policy.begin(slot)
        offered = [min(1, policy.most(slot)) for slot in slots]
        counts = chosen(policy, slots, offered, 8)
        for slot, drafted in enumerate(counts):
            if drafted:
                policy.note(slot, drafted, 0)
        tried += 0.05 if sum(counts) else 0.0
        policy.took(8 + sum(counts), 0.15 if sum(counts) else 0.1)
        assert tried <= TRIALS * (0.1 * step + tried) + 0.06
    assert tried >= 3


def test_where_nothing_is_there_to_draft_it_is_looked_for_less_often():
    policy = DraftPolicy(1)
    rests = []
    for _ in range(6):
        policy.missed(0)
        rests.append(rest(policy))
    assert rests == [0, 1, 3, 7, 7, 7]
    policy.note(0, 2, 1)
    policy.missed(0)
    assert rest(policy) == 0


def test_what_others_accepted_is_expected_of_a_new_sequence():
    policy = priced(0.05, 0.1)
    for _ in range(100):
        policy.note(0, 2, 0)
    policy.begin(1)
    assert chosen(policy, [1], [2], 1) == [0]


@pytest.mark.parametrize("sequences", [1, 4])
def test_steps_that_take_longer_the_first_time_do_not_end_drafting(sequences):
    """Kernels that are compiled for each number of rows make such steps."""
    policy, known, lengths = DraftPolicy(sequences), {sequences}, [0] * sequences
    slots, steps = list(range(sequences)), 0
    for _ in range(20):
        policy.took(sequences, 0.01)
    while min(lengths) < 160:
        counts = chosen(policy, slots, [policy.most(slot) for slot in slots], sequences)
        for slot, drafted in enumerate(counts):
            lengths[slot] += 1 + drafted
            if drafted:
                policy.note(slot, drafted, drafted)
        rows, steps = sequences + sum(counts), steps + 1
        policy.took(rows, 0.01 if rows in known else 0.3)
        known.add(rows)
    assert steps <= 160 / MOST_DRAFTED + 2


def test_seconds_of_a_step_lie_in_proportion_between_those_that_were_measured():
    cost = StepCost()
    assert cost.seconds(np.array([5])).tolist() == [1.0]
    # The first of each number of rows is left out.
    for seconds in (9.0, 0.2, 0.1, 0.3):
        cost.took(2, seconds)
    assert cost.seconds(np.array([1, 2, 9])).tolist() == [0.2, 0.2, 0.2]
    for seconds in (9.0, 0.4):
        cost.took(6, seconds)
    assert cost.seconds(np.array([4, 100])).tolist() == pytest.approx([0.3, 0.4])
    # A slow one among them is noise, and so is the slower of two.
    for seconds in (9.0, 9.0):
        cost.took(4, seconds)
    assert cost.seconds(np.array([4])).tolist() == pytest.approx([0.4])
    cost.took(6, 9.0)
    assert cost.seconds(np.array([100])).tolist() == pytest.approx([0.4])


def test_a_size_that_was_not_computed_for_long_is_forgotten():
    cost = StepCost()
    for _ in range(2):
        cost.took(1, 0.1)
        cost.took(9, 7.0)
    assert cost.seconds(np.array([9]))[0] == 7.0
    for _ in range(2 * FORGOTTEN):
        cost.took(1, 0.1)
    assert cost.seconds(np.array([1, 9])).tolist() == [0.1, 0.1]


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-4, 1.0)), min_size=1))
def test_seconds_of_a_step_lie_within_those_that_were_measured_and_never_fall(steps):
    cost = StepCost()
    for size, seconds in steps:
        cost.took(size, 9.0)
        cost.took(size, seconds)
    # Only the very first of a number of rows is left out.
    repeated = len({size for size, _ in steps}) < len(steps)
    measured = [seconds for _, seconds in steps] + [9.0] * repeated
    predicted = cost.seconds(np.arange(1, 5001, 7))
    assert (np.diff(predicted) >= -1e-12).all()
    assert min(measured) - 1e-12 <= predicted.min() <= predicted.max() <= max(measured) + 1e-12


# --- steps ------------------------------------------------------------------------------------


def spoken(ids: tuple[int, ...], vocabulary: int) -> int:
    """The next token of a model that is a function of the context."""
    return hash(("next", *ids[-4:])) % vocabulary


def decode(ids: list[int]) -> str:
    """Texts of tokens overlap, so that a stop text may begin and end inside of them."""
    return "".join(("a", "ab", "b")[token] for token in ids)


def generated(
    prompts: list[list[int]], references: list[list[bytes]], new: int, stop: int, *,
    drafts: bool, budget: int, kv_tokens: int = 0, vocabulary: int = 3, texts: Sequence[str] = (),
) -> tuple[list[list[int]], SequenceScheduler]:  # fmt: skip
    """All answers, by a scheduler whose steps sample what `spoken` says at each row."""
    stop_texts = StopTexts(texts, decode) if texts else None
    scheduler = SequenceScheduler(4, 64, (stop,), drafts=drafts, kv_tokens=kv_tokens, stop_texts=stop_texts)
    for number, (ids, known) in enumerate(zip(prompts, references, strict=True)):
        request = GenerateRequest(request_id=str(number), ids=ids, max_new_tokens=new, references=known)
        scheduler.add(request)
    answers: dict[str, list[int]] = {}
    table = scheduler.table
    while scheduler.has_work:
        planned = scheduler.schedule(budget)
        assert planned is not None
        batch, complete = planned
        rows: list[int] = []
        for place in np.flatnonzero(complete).tolist():
            slot, end = int(batch.slots[place]), int(batch.starts[place] + batch.counts[place])
            first = end - int(batch.drafts[place])
            assert first == table.length[slot]
            rows += [
                spoken(tuple(table.tokens[slot, :stop].tolist()), vocabulary)
                for stop in range(first, end + 1)
            ]
        before = {slot: int(table.prompt[slot]) for slot in batch.slots.tolist()}
        ids = np.array(rows, dtype=np.int64)
        slots, added, stopped, full = scheduler.advance(batch, complete, ids, np.zeros(len(ids)), 1)
        assert (added >= 1).all() and (table.cached[slots] == table.length[slots] - 1).all()
        for slot in slots[stopped | full].tolist():
            answers[table.request_id(slot)] = table.tokens[slot, before[slot] : table.length[slot]].tolist()
            scheduler.finish(slot)
    return [answers[str(number)] for number in range(len(prompts))], scheduler


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_answers_are_the_same_with_and_without_drafts(data):
    ids = st.lists(st.integers(0, 2), min_size=1, max_size=12)
    prompts = data.draw(st.lists(ids, min_size=1, max_size=6))
    references = [[reference(*data.draw(st.lists(st.integers(0, 2), max_size=30)))] for _ in prompts]
    new, stop = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([0, 99]))
    budget, kv_tokens = data.draw(st.integers(4, 60)), data.draw(st.sampled_from([0, 100]))
    texts = data.draw(st.lists(st.text("ab", min_size=2, max_size=7), max_size=2))
    settings_ = {"budget": budget, "kv_tokens": kv_tokens, "texts": texts}
    plain, _ = generated(prompts, references, new, stop, drafts=False, **settings_)
    drafted, _ = generated(prompts, references, new, stop, drafts=True, **settings_)
    assert drafted == plain
    for answer in plain:
        ended = any(text in decode(answer) for text in texts)
        assert ended or len(answer) == new or answer[-1] == stop
        assert not any(text in decode(answer[:-1]) for text in texts)


def test_a_known_answer_takes_few_steps():
    prompt, answer = [1, 2, 0, 1], []
    for _ in range(40):
        answer.append(spoken((*prompt, *answer), 3))
    known = [[reference(*prompt, *answer)]]
    answers, scheduler = generated([prompt], known, 40, 99, drafts=True, budget=100)
    assert answers == [answer]
    drafter = scheduler.drafter
    assert drafter is not None
    counts = drafter.take()
    assert counts.accepted == counts.drafted and counts.drafted_tokens > 25
    # Each step gave its sequence the token that it samples anyway, and what of its draft stood.
    assert counts.tokens == 40 == counts.steps + counts.accepted_tokens
    assert drafter.take() == DraftCounts()


def test_each_token_has_the_source_of_the_first_place_that_has_it_and_all_before_it():
    ids = [1, 2, 3, 4, 1, 2, 3]
    same, other, rest = reference(9, 1, 2, 3, 5), reference(8, 1, 2, 3, 6), reference(1, 2, 3, 4)
    six, seven = reference(1, 2, 3, 5, 6), reference(1, 2, 3, 5, 7)
    for references, of_task, context, draft in (
        ([same, other], 1, [8, *ids], ([5], ["task"])),
        ([other, same], 0, [8, 1, 2, 3], ([6], ["environment"])),
        # Two of three places are for 4, and the first of them is the environment's.
        ([same, rest, rest], 1, [1, 2, 3], ([4], ["environment"])),
        ([same, rest, rest], 2, [1, 2, 3], ([4], ["task"])),
        # All three have 5, and the task's place no more of it.
        ([six, seven, seven], 1, [1, 2, 3], ([5, 7], ["task", "environment"])),
        ([reference(1, 2, 3)], 1, [*ids, 4, 1, 2], ([3, 4, 1, 2], ["context"] * 4)),
        ([], 0, [1, 2], ([], [])),
    ):
        lookup = DraftLookup(references, of_task)
        assert lookup.propose(np.array(context, dtype=np.int64), 4) == draft, (references, context)


@pytest.mark.parametrize(("of_task", "source"), [(0, "environment"), (1, "task")])
def test_tokens_are_counted_by_their_source(of_task, source):
    scheduler = SequenceScheduler(4, 64, drafts=True)
    drafter = scheduler.drafter
    assert drafter is not None
    known = [reference(*range(40))]
    scheduler.add(
        GenerateRequest(
            request_id="a", ids=list(range(10)), max_new_tokens=20, references=known, task_references=of_task
        )
    )
    planned = scheduler.schedule(13)
    assert planned is not None
    batch, complete = planned
    assert batch.drafts.tolist() == [3]
    # Two of the three stand.
    scheduler.advance(batch, complete, np.array([10, 11, 50, 51]), np.zeros(4), 1)
    assert drafter.take() == DraftCounts(1, 3, {source: 3}, {source: 2})


@pytest.mark.parametrize(
    ("sequences", "budget", "most"), [(3, 1000, 3 * 16), (8, 1000, DRAFTED_ROWS), (3, 60, 27)]
)
def test_a_step_computes_no_more_drafts_than_it_may(sequences, budget, most):
    """Prompts of 10, 11, … tokens are computed in it, too."""
    scheduler = SequenceScheduler(sequences, 64, drafts=True)
    known = reference(*range(60))
    for number in range(sequences):
        ids = list(range(10 + number))
        scheduler.add(GenerateRequest(request_id=str(number), ids=ids, max_new_tokens=20, references=[known]))
    planned = scheduler.schedule(budget)
    assert planned is not None
    assert planned[0].drafts.sum() == most
