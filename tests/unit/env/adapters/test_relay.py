"""The relay goes on exactly as long as the agent answers rightly."""

import pytest

from earl.env.adapters.relay import Relay
from earl.env.serve import load


def answer(observation):
    return f"[{(int(observation.text.split()[-1]) + 1) % 10}]"


def started(seed=5, **task):
    relay = load("earl.env.adapters.relay:environments")["relay/digits"]()
    return relay, relay.reset(seed, task)


def test_right_answers_reach_the_last_turn_and_the_whole_reward():
    relay, observation = started(turns=7, digits=4)
    total, lengths = 0.0, set()
    for turn in range(7):
        lengths.add(len(observation.text.split()))
        result = relay.step(answer(observation))
        total += result.reward
        assert result.done == (turn == 6)
        observation = result.observation
    assert lengths == {4}
    assert total == pytest.approx(1.0) and result.metrics == {"win": 1.0, "right": 7.0}


@pytest.mark.parametrize("said", ["no digit", "[12]", ""])
def test_the_first_mistake_ends_it_and_keeps_what_was_right(said):
    relay, observation = started(turns=4)
    first = relay.step("let me think [0] " + answer(observation))
    assert not first.done and first.reward == 0.25
    last = relay.step(said)
    assert last.done and last.reward == 0.0 and last.metrics == {"win": 0.0, "right": 1.0}


def test_a_seed_is_an_instance():
    texts = [started(seed)[1].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert set(started()[1].legal_actions) == {f"[{digit}]" for digit in range(10)}


def test_the_right_answer_is_among_few_choices():
    places = set()
    for seed in range(30):
        _, observation = started(seed, choices=3)
        assert len(observation.legal_actions) == 3 and answer(observation) in observation.legal_actions
        places.add(observation.legal_actions.index(answer(observation)))
    assert places == {0, 1, 2}


BAD = [{"turns": 0}, {"digits": 1.5}, {"turns": True}, {"choices": 11}, {"rounds": 3}]


@pytest.mark.parametrize("task", BAD)
def test_a_bad_task_is_named(task):
    with pytest.raises(ValueError, match=next(iter(task))):
        Relay().reset(0, task)


def test_the_turns_of_an_instance_are_drawn_where_the_task_says_so():
    def turns(seed):
        relay, observation = started(seed, turns=6, least_turns=3)
        for turn in range(1, 7):
            result = relay.step(answer(observation))
            if result.done:
                return turn
            observation = result.observation
        raise AssertionError

    drawn = [turns(seed) for seed in range(40)]
    assert set(drawn) == {3, 4, 5, 6} and drawn == [turns(seed) for seed in range(40)]
    with pytest.raises(ValueError, match="least_turns is 7, more than turns"):
        started(turns=6, least_turns=7)


def test_turns_past_the_free_ones_cost_the_penalty():
    relay = load("earl.env.adapters.relay:environments")["relay/penalised"]()
    observation = relay.reset(5, {"turns": 4, "free_turns": 2, "penalty": 0.5})
    rewards = []
    for _ in range(3):
        result = relay.step(answer(observation))
        rewards.append(result.reward)
        observation = result.observation
    assert rewards == [0.25, 0.25, -0.25]
    assert relay.step("wrong").reward == -0.5


def recited(text, seed=5, **task):
    """The observation, and the result of the answer that `text` makes of its last digit."""
    recite = load("earl.env.adapters.relay:environments")["relay/recite"]()
    observation = recite.reset(seed, task)
    return observation, recite.step(text(int(observation.text.split()[-1])))


def counted(last, digits):
    return " ".join(str((last + place) % 10) for place in range(1, digits + 1))


def test_many_digits_are_one_answer_and_each_counts_in_its_place():
    observation, result = recited(lambda last: f"hm [{counted(last, 12)}]", digits=3, answer=12)
    assert len(observation.text.split()) == 3 and result.done
    assert result.reward == 1.0 and result.metrics == {"win": 1.0, "right": 1.0}
    # An answer that a limit has ended counts as far as it goes.
    assert recited(lambda last: f"[{counted(last, 9)}", answer=12)[1].reward == 0.75
    assert recited(lambda last: f"[{last} {counted(last, 11)}]", answer=12)[1].reward == 0.0
    # Spaces do not count.
    assert recited(lambda last: f"[{counted(last, 12).replace(' ', '')}]", answer=12)[1].reward == 1.0
    assert recited(lambda last: "no bracket", answer=12)[1].reward == 0.0
    # More digits than were asked for earn nothing.
    assert recited(lambda last: f"[{counted(last, 40)}]", answer=12)[1].metrics["win"] == 1.0


def test_the_right_recital_is_among_the_choices():
    for seed in range(10):
        observation, _ = recited(str, seed, answer=5, choices=3)
        last = int(observation.text.split()[-1])
        assert len(observation.legal_actions) == 3
        assert f"[{counted(last, 5)}]" in observation.legal_actions
    with pytest.raises(ValueError, match="answer"):
        recited(str, answer=0)
