"""`earl env test` of an environment of which a client may play two seats: what is planted is found."""

import pytest

from earl.env import Environment, Observation, StepResult
from earl.env.conformance.card import CheckVerdict
from tests.contract.test_conformance import Sound, carded
from tests.support.episodes import seen
from tests.support.seats import Heap


class Deaf(Heap):
    """Seat 1 never has a turn."""

    def step(self, action):
        result = super().step(action)
        self.seat = 0
        shown = seen(result)
        if self.seats_played == 1 or result.done:
            return result
        return StepResult(Observation(shown.text, shown.legal_actions), rewards=result.rewards)


class Miserly(Heap):
    def step(self, action):
        result = super().step(action)
        return result if self.seats_played == 1 else StepResult(result.observation, done=result.done)


class Forgetful(Heap):
    """Shows seat 1 how many episodes the process has played."""

    episodes = 0

    def reset(self, seed, task):
        type(self).episodes += 1
        return super().reset(seed, task)

    def step(self, action):
        result = super().step(action)
        shown = seen(result)
        if self.seats_played == 1 or result.done or shown.seat == 0:
            return result
        text = f"{shown.text} {type(self).episodes}"
        return StepResult(Observation(text, shown.legal_actions, seat=1), rewards=result.rewards)


class Generous(Heap):
    """Nonsense of a seat pays it, in a session of two seats alone."""

    pays = (1.0, 0.0)

    def _end(self, mover, winner, illegal=False):
        result = super()._end(mover, winner, illegal)
        if self.seats_played == 1 or not illegal:
            return result
        rewards = self.pays if mover == 0 else self.pays[::-1]
        return StepResult(result.observation, done=True, rewards=rewards)


class Traitor(Generous):
    """Nonsense of a seat pays the other."""

    pays = (-1.0, 1.0)


class Flat(Heap):
    def _end(self, mover, winner, illegal=False):
        result = super()._end(mover, winner, illegal)
        if self.seats_played == 1:
            return result
        return StepResult(result.observation, done=True, rewards=(result.rewards[0], 0.0))


class Patient(Heap):
    """Nonsense of a seat is the other's turn, for ever, where two are played."""

    def _end(self, mover, winner, illegal=False):
        if self.seats_played == 1 or not illegal:
            return super()._end(mover, winner, illegal)
        self.seat = 1 - mover
        return StepResult(self._shown(), rewards=(0.0, 0.0))


async def test_a_sound_environment_of_two_seats_passes():
    card = await carded(Heap)
    assert card.passed, [check for check in card.checks if check.verdict == "fail"]
    (found,) = card.named("seats")
    assert found.verdict is CheckVerdict.PASS
    assert found.seen.startswith("2 seats in 3 episodes of ")
    assert "returns of seat 0 -1 to 1, of seat 1 -1 to 1" in found.seen


async def test_one_seat_is_no_line_of_the_card_unless_it_is_asked_for():
    card = await carded(Sound, "seats")
    assert [(check.verdict, check.seen) for check in card.named("seats")] == [
        ("skip", "a client plays one seat of it")
    ]


PLANTED: list[tuple[type[Environment], str, str]] = [
    (Deaf, "fail", "seat 1 of 2 has no turn in 3 episodes"),
    (Miserly, "fail", "reward 0.0 and rewards () of step 1"),
    (Forgetful, "fail", "text of step 1 with seed 0"),
    (Generous, "fail", "nonsense of seat 0 earns it 1"),
    (Traitor, "warn", "nonsense of seat 0 earns another seat 1"),
    (Flat, "warn", "seat 1 earns 0 in all of 3 episodes"),
    (Patient, "warn", "all seats repeat it: 3 of 5 actions never end the episode"),
]


@pytest.mark.parametrize(
    ("environment", "verdict", "words"), PLANTED, ids=[planted[0].__name__ for planted in PLANTED]
)
async def test_a_planted_fault_is_found(environment: type[Environment], verdict: str, words: str):
    card = await carded(environment, "seats")
    (found,) = card.named("seats")
    assert (found.verdict, words in found.seen) == (verdict, True), found
    assert found.remedy


class Rich(Heap):
    """Seat 1 earns more than is declared."""

    def _end(self, mover, winner, illegal=False):
        result = super()._end(mover, winner, illegal)
        if self.seats_played == 1:
            return result
        return StepResult(result.observation, done=True, rewards=(result.rewards[0], 2.0 * result.rewards[1]))


async def test_each_seats_rewards_are_within_the_range():
    card = await carded(Rich, "seats", "numbers")
    (numbers,) = card.named("numbers")
    assert numbers.verdict is CheckVerdict.FAIL and "of seat 1 of session" in numbers.seen
