"""The aircraft that recovers in pitch: its physics, the rules of an episode, and two policies."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.env.adapters.held_out import EVALUATION_BIT
from earl.env.adapters.pitch import STICKS, PitchRecovery, environments, parsed
from earl.env.adapters.pitch_model import (
    GRAVITY,
    LEVEL_ANGLE,
    STICK_PULL,
    Aircraft,
    PitchState,
    advanced,
    commanded,
    hold_stick,
    moment,
    near_optimal,
)
from tests.support.episodes import seen

JET = Aircraft()
GLIDER = Aircraft(thrust=0.0, drag_zero=0.0, drag_induced=0.0)
CRUISE = PitchState(2000.0, 180.0, 0.0)


def flown(aircraft, state, sticks, hold_s=0.5):
    moments = [moment(aircraft, state, sticks[0])]
    for stick in sticks:
        moments += list(hold_stick(aircraft, moments[-1].state, stick, hold_s))[1:]
    return moments


def energy_height(state):
    """Altitude plus speed squared over 2 g, metres: what neither gravity nor lift changes."""
    return state.altitude + state.speed**2 / (2 * GRAVITY)


# --- physics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [-60.0, -10.0, 0.0, 40.0])
def test_energy_is_kept_without_drag_and_thrust_and_lost_with_drag(path):
    start = PitchState(3000.0, 180.0, math.radians(path))
    sticks = [1.0, 1.0, -0.5, 0.3, 0.0, 0.7]
    kept = energy_height(flown(GLIDER, start, sticks)[-1].state) - energy_height(start)
    assert abs(kept) < 0.05  # metres, of thousands
    lost = energy_height(flown(Aircraft(thrust=0.0), start, sticks)[-1].state) - energy_height(start)
    assert lost < -10


def test_level_flight_stays_level_and_a_pull_turns_as_it_should():
    for felt in flown(JET, CRUISE, [0.0] * 20):
        assert felt.state.path == felt.path_rate == 0.0 and felt.pilot == felt.state.load == 1.0
        assert felt.state.altitude == 2000.0
    pulled = PitchState(2000.0, 180.0, 0.0, load=5.0)
    assert moment(JET, pulled, 0.5).path_rate == pytest.approx(GRAVITY * 4.0 / 180.0)
    assert moment(JET, PitchState(2000.0, 180.0, math.pi / 2, load=0.0), 0.0).path_rate == pytest.approx(
        0.0, abs=1e-9
    )


def test_the_load_follows_the_stick_and_the_pilot_feels_the_pitching_first():
    moments = flown(JET, PitchState(2000.0, 250.0, 0.0), [0.5] * 4)
    assert moments[-1].state.load == pytest.approx(1.0 + 0.5 * STICK_PULL, rel=0.05)
    assert max(one.state.load for one in moments) < 1.08 * (1.0 + 0.5 * STICK_PULL)
    assert moments[0].state.load == 1.0 and moments[0].pilot > 1.3
    pushed = flown(JET, CRUISE, [-0.5] * 4)
    assert pushed[-1].state.load == pytest.approx(-1.0, rel=0.05) and pushed[0].pilot < 1.0


def test_a_slow_wing_gives_no_more_lift_than_it_has():
    slow = PitchState(2000.0, 80.0, 0.0)
    assert 1.0 < commanded(JET, slow, 1.0) < 2.0
    assert commanded(JET, PitchState(2000.0, 260.0, 0.0), 1.0) == 1.0 + STICK_PULL
    assert commanded(JET, PitchState(12_000.0, 180.0, 0.0), 1.0) < commanded(JET, CRUISE, 1.0)


def test_smaller_steps_change_nothing_that_matters():
    state = fine = PitchState(2000.0, 180.0, math.radians(-40.0))
    for _ in range(60):
        state = advanced(JET, state, 0.7)
    for _ in range(600):
        fine = advanced(JET, fine, 0.7, 0.005)
    assert state.seconds == pytest.approx(fine.seconds)
    assert state.altitude == pytest.approx(fine.altitude, abs=0.05)
    assert state.path == pytest.approx(fine.path, abs=1e-4)


# --- episodes -------------------------------------------------------------------------------------


def foreseeing(environment):
    stick = near_optimal(environment.aircraft, environment.now.state, environment.hold_s, environment.limits)
    return f"{stick:.3f}"


def play(policy, seed, **task):
    environment = environments()[0]()
    assert isinstance(environment, PitchRecovery)
    texts = [environment.reset(seed, task).text]
    while True:
        result = environment.step(policy(environment))
        texts.append(seen(result).text)
        if result.done:
            return result, texts, environment


def test_a_policy_that_foresees_recovers_and_random_ones_do_not():
    for seed in (1, 2, 4):
        result, _, environment = play(foreseeing, seed)
        assert result.reward == 1.0 and result.metrics["win"] == 1.0, seed
        assert environment.limits[0] <= result.metrics["least_g"]
        assert result.metrics["most_g"] <= environment.limits[1]
        assert abs(environment.now.state.path) <= LEVEL_ANGLE
    rng = random.Random(5)
    rewards = [play(lambda _: rng.choice(STICKS), seed)[0].reward for seed in range(20)]
    assert sum(rewards) / 20 < 0.3 and all(0 <= reward < 1 for reward in rewards)


def test_the_limit_can_be_kept_or_broken():
    dive = next(seed for seed in range(99) if play(lambda _: "x", seed)[2].start.path < -0.8)
    kept = play(foreseeing, dive, most_g=4.5)[0]
    assert kept.metrics["most_g"] <= 4.5 and kept.metrics["win"] == 1.0
    free = play(foreseeing, dive, most_g=9.0)[0]
    assert free.metrics["seconds"] < kept.metrics["seconds"]

    def hard(environment):
        environment.limits, own = (-3.0, 9.0), environment.limits
        action = foreseeing(environment)
        environment.limits = own
        return action

    broken = play(hard, dive, most_g=4.5)[0]
    assert broken.metrics["recovered"] == broken.metrics["over_g"] == 1.0 and broken.metrics["win"] == 0.0
    assert 0.25 < broken.reward <= 0.5


def test_the_ground_and_the_clock_end_it():
    dive = next(seed for seed in range(99) if play(lambda _: "x", seed)[2].start.path < -0.8)
    struck, texts, environment = play(lambda _: "-1", dive)
    assert (struck.reward, struck.metrics["ground"]) == (0.0, 1.0)
    assert environment.now.state.altitude <= 0
    assert "struck the ground" in texts[-1] and "altitude 0 m" in texts[-1]
    climb = next(seed for seed in range(99) if play(lambda _: "x", seed)[2].start.path > 0)
    late, texts, _ = play(lambda _: "0", climb, max_s=3.0, hold_s=1.0)
    assert (late.reward, late.metrics["seconds"], len(texts)) == (0.0, 3.0, 4)


@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from(STICKS), min_size=1, max_size=12))
@settings(max_examples=30)
def test_episodes_repeat_and_stay_finite(seed, sticks):
    def replayed():
        environment = PitchRecovery()
        texts = [environment.reset(seed, {"hold_s": 0.2}).text]
        for stick in sticks:
            result = environment.step(stick)
            texts.append(seen(result).text)
            assert 0 <= result.reward <= 1 and all(map(math.isfinite, result.metrics.values()))
            if result.done:
                break
        return texts

    assert replayed() == replayed()


@pytest.mark.parametrize("text", ["0", " 1 ", "-1", "+0.25", "stick 0.5", "-0.125", "1.000", "-0"])
def test_sticks(text):
    assert parsed(text) == float(text.replace("stick", ""))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.5",
        "-1.001",
        "0.1234",
        ".5",
        "1e-1",
        "nan",
        "inf",
        "0,5",
        "0.5.",
        "pull 0.5",
        "0.5 0.5",
        "٠",
        "1" * 99,
    ],
)
def test_what_is_no_stick_ends_the_episode(text):
    assert parsed(text) is None
    result, _, _ = play(lambda _: text, 3)
    assert (result.done, result.reward, result.metrics["malformed"]) == (True, 0.0, 1.0)


def test_what_is_told_and_how_starts_are_drawn():
    environment = PitchRecovery()
    first = environment.reset(3, {"instruction": ""})
    assert first.text.startswith("time 0.0 s, altitude ") and first.text.endswith("pilot 1.0 g of -1 to 7")
    assert list(first.legal_actions) == list(STICKS)
    assert environment.reset(3, {}).text.endswith(first.text)
    starts = {start_of(seed) for seed in range(60)}
    held_out = {start_of(seed | EVALUATION_BIT) for seed in range(60)}
    assert len(starts) == len(held_out) == 60 and not starts & held_out
    for bad in ({"hold": 1}, {"hold_s": 0}, {"most_g": True}, {"max_s": "1"}, {"instruction": 5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            environment.reset(1, bad)


def start_of(seed):
    environment = PitchRecovery()
    environment.reset(seed, {})
    return environment.start


@pytest.mark.slow
def test_every_start_can_be_recovered_from():
    for seed in range(150):
        result, _, _ = play(foreseeing, seed)
        assert result.metrics["win"] == 1.0, seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 4, 7])
def test_no_search_finds_a_way_much_faster(seed):
    """A beam search over sticks, with the model and the limits: at most one turn less."""
    result, _, environment = play(foreseeing, seed)
    beam, turns = [environment.start], 0
    sticks = [number / 10 for number in range(-10, 11)]
    while True:
        turns += 1
        reached = []
        for state in beam:
            for stick in sticks:
                felt = list(hold_stick(environment.aircraft, state, stick, environment.hold_s))
                low, high = environment.limits
                if felt[-1].struck or not all(low <= one.pilot <= high for one in felt):
                    continue
                reached.append(felt[-1])
        if any(felt.level for felt in reached) or turns * 0.5 >= result.metrics["seconds"]:
            break
        # Closest to level, with the rate that it has now for another second.
        reached.sort(key=lambda felt: abs(felt.state.path + 0.5 * felt.path_rate))
        beam = [felt.state for felt in reached[:20]]
        reached.sort(key=lambda felt: abs(felt.state.path))
        beam += [felt.state for felt in reached[:20]]
    assert result.metrics["seconds"] <= turns * environment.hold_s + environment.hold_s + 1e-6
