"""The search task: its made-up corpora, what counts as an answer, what a search earns, episodes."""

import re

import pytest

from earl.env import Action, ToolCall
from earl.env.adapters.held_out import EVALUATION_BIT
from earl.env.adapters.search_tool import (
    ANSWERED,
    KINDS,
    MOST_TOWNS,
    REACHED_TOWN,
    SEARCHED,
    SearchTool,
    call_of,
    environments,
)
from earl.env.tool_calls import describe
from tests.support.episodes import seen


def begun(seed=3, **task):
    environment = environments()[0]()
    assert isinstance(environment, SearchTool)
    return environment, environment.reset(seed, task)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_asked_stands_in_the_document_that_a_search_finds(kind):
    environment, first = begun(kinds=[kind], results=1)
    corpus = environment.corpus
    assert first.text.startswith(corpus.question) and corpus.town in first.text
    found = await environment.step(call_of(corpus.town))
    assert (found.done, seen(found).role) == (False, "tool")
    assert seen(found).text.startswith(f"{corpus.town}: ") and "\n" not in seen(found).text
    assert corpus.answer in seen(found).text and corpus.answer in seen(found).legal_actions
    assert found.reward == pytest.approx(SEARCHED + REACHED_TOWN)
    end = await environment.step(f"It is {corpus.answer}.")
    assert (end.done, end.reward) == (True, ANSWERED)
    assert end.metrics == {"win": 1.0, "searched": 1.0, "found": 1.0, "calls": 1.0}
    environment.close()


async def test_partial_credit_is_given_once():
    environment, _ = begun(results=1)
    corpus = environment.corpus
    other = next(town for town in corpus.values["river"] if town != corpus.town)
    assert (await environment.step(call_of("zebra"))).reward == 0.0
    found = await environment.step(call_of(other))
    assert seen(found).text.startswith(other) and found.reward == pytest.approx(SEARCHED)
    both = Action(
        "", [ToolCall("search", {"query": corpus.town}, "a"), ToolCall("search", {"query": other}, "b")]
    )
    found = await environment.step(both)
    assert [result.id for result in seen(found).tool_results] == ["a", "b"]
    assert found.reward == pytest.approx(REACHED_TOWN)
    assert (await environment.step(call_of(corpus.town))).reward == 0.0
    end = await environment.step(call_of(corpus.town))
    assert (end.done, end.reward, end.metrics["win"]) == (True, 0.0, 0.0)
    assert end.metrics["calls"] == 6.0


async def test_calls_that_are_wrong_are_told_and_earn_nothing():
    environment, _ = begun()
    for text in ("<tool_call>{", '<tool_call>{"name": "find", "arguments": {}}</tool_call>'):
        told = await environment.step(text)
        assert seen(told).text.startswith("error: ") and (told.done, told.reward) == (False, 0.0)
    end = await environment.step("no idea")
    assert end.metrics == {"win": 0.0, "searched": 0.0, "found": 0.0, "calls": 0.0}


def test_an_answer_names_the_right_value_and_no_other():
    environment, _ = begun(kinds=["founded"])
    corpus = environment.corpus
    year = corpus.answer
    others = [value for value in corpus.values["founded"].values() if value != year]
    assert corpus.is_right(year) and corpus.is_right(f"In {year}, I think: {year}!")
    assert not corpus.is_right(f"{year} or {others[0]}") and not corpus.is_right(others[0])
    assert not corpus.is_right(f"1{year}") and not corpus.is_right("")
    people = begun(kinds=["people"])[0].corpus
    assert people.is_right(f"{int(people.answer):,} people")
    mayor = begun(kinds=["mayor"])[0].corpus
    assert mayor.is_right(mayor.answer.lower()) and not mayor.is_right(mayor.answer.split()[0])


def test_a_corpus_is_its_seeds_and_no_two_facts_are_alike():
    environment, first = begun(5)
    assert begun(5)[1] == first and begun(5)[0].corpus == environment.corpus
    corpus = environment.corpus
    assert len(corpus.documents) == MOST_TOWNS
    for values in corpus.values.values():
        assert len(set(values.values())) == len(values) == MOST_TOWNS
    for document in corpus.documents:
        said = [
            value
            for values in corpus.values.values()
            for value in values.values()
            if re.search(rf"\b{value}\b", document.text)
        ]
        assert len(said) == len(KINDS), document
    training = {begun(seed)[0].corpus.question for seed in range(60)}
    held_out = {begun(seed | EVALUATION_BIT)[0].corpus.question for seed in range(60)}
    assert len(training) > 50 and not training & held_out


@pytest.mark.parametrize("kind", KINDS)
async def test_legal_actions_can_be_read_and_one_is_right(kind):
    environment, first = begun(towns=3, instruction="", kinds=[kind], calls=3)
    corpus = environment.corpus
    assert first.text == corpus.question
    assert len(first.legal_actions) == 3 and call_of(corpus.town) in first.legal_actions
    for action in first.legal_actions:
        found = seen(await environment.step(action))
        assert found.text != "nothing found" and len(found.legal_actions) == 3
        assert all(value in found.text for value in found.legal_actions)
        assert (corpus.answer in found.legal_actions) == found.text.startswith(corpus.town)
    assert '"search"' in describe(environment.tools) and '"query"' in describe(environment.tools)


async def test_before_anything_is_found_only_searches_are_legal():
    environment, first = begun()
    assert seen(await environment.step(call_of("zebra"))).legal_actions == first.legal_actions


@pytest.mark.parametrize(
    "task",
    [{"kind": ["river"]}, {"kinds": []}, {"kinds": ["sea"]}, {"towns": 2}, {"results": True}, {"calls": 0}],
)
def test_bad_tasks_name_the_key(task):
    with pytest.raises(ValueError, match=next(iter(task))):
        begun(1, **task)
