"""gymnasium's environments in words: what is shown, what an action is, how episodes end."""

from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from earl.env.adapters import gymnasium as adapter
from earl.env.adapters.gymnasium_views import MAX_STEPS, VIEWS
from earl.env.adapters.held_out import EVALUATION_BIT
from tests.support.episodes import MALFORMED, played, total

ENVIRONMENTS: dict[str, Any] = {cls.name.removeprefix("gymnasium/"): cls for cls in adapter.environments()}
LAKE = ENVIRONMENTS["FrozenLake-v1"]

# Ids that gymnasium registers and the adapter leaves to packages that are not installed.
NEED_MORE = {
    "box2d": "box2d",
    "mujoco": "mujoco",
    "phys2d": "jax",
    "tabular": "jax",
}


def test_what_the_agent_sees():
    first = LAKE().reset(3, {"is_slippery": False})
    assert first.text.endswith("[S] F F F\nF H F H\nF F F H\nH F F G")
    assert first.legal_actions == ["[left]", "[down]", "[right]", "[up]"]
    lake = LAKE()
    lake.reset(3, {"is_slippery": False})
    assert lake.step("I go [right]").observation.text.startswith("S [F] F F\n")
    taxi = ENVIRONMENTS["Taxi-v4"]().reset(3, {})
    assert "Taxi: row 0, column 2. Passenger: at R. Destination: Y." in taxi.text
    cards = ENVIRONMENTS["Blackjack-v1"]().reset(3, {}).text
    assert "Your cards: 7, without a usable ace. The dealer shows 10." in cards
    cart = ENVIRONMENTS["CartPole-v1"]().reset(3, {}).text.splitlines()[-1]
    assert cart.startswith("cart position -0.04144, cart velocity -0.02632, pole angle")


def test_the_way_across_the_lake():
    lake = LAKE()
    lake.reset(0, {"is_slippery": False})
    for move in ("down", "down", "right", "right", "down"):
        result = lake.step(f"[{move}]")
        assert not result.done
    result = lake.step("[right]")
    assert (result.reward, result.done) == (1.0, True)
    assert result.metrics == {"win": 1.0, "illegal": 0.0, "steps": 6.0}


def test_maps_are_the_seeds_and_held_out():
    def map_of(seed):
        return LAKE().reset(seed, {"map_size": 5}).text.rpartition("\n\n")[2]

    training = {map_of(seed) for seed in range(20)}
    evaluation = {map_of(seed | EVALUATION_BIT) for seed in range(20)}
    assert len(training) > 10 and not training & evaluation
    assert map_of(3) == map_of(3) and len(map_of(3).splitlines()) == 5


@pytest.mark.parametrize("id", list(VIEWS))
def test_episodes_repeat_from_their_seed_and_stay_within_their_bounds(id):
    task = {"max_steps": 60}
    result, seen = played(ENVIRONMENTS[id], 5, task)
    assert (result, seen) == played(ENVIRONMENTS[id], 5, task)
    low, high = ENVIRONMENTS[id].reward_range
    assert low <= total(seen) <= high
    assert result.truncated is not result.done and result.metrics["steps"] == len(seen) - 1
    if result.truncated:
        assert result.metrics["steps"] == 60


def test_episodes_at_once_do_not_mix():
    first, second = LAKE(), LAKE()
    alone = played(LAKE, 1, {}, lambda observation: "[right]")[1]
    first.reset(1, {})
    second.reset(2, {})
    for expected in alone[1:]:
        second_over = second.step("[left]").done
        assert first.step("[right]") == expected
        if second_over:
            second.reset(2, {})


@pytest.mark.parametrize("id", ["Taxi-v4", "CartPole-v1", "Blackjack-v1", "FrozenLake-v1"])
@pytest.mark.parametrize("action", MALFORMED)
def test_what_is_no_action_ends_the_episode_at_its_worst(id, action):
    environment = ENVIRONMENTS[id]()
    environment.reset(3, {"max_steps": 10})
    result = environment.step(action)
    assert result.done and result.metrics == {"win": 0.0, "illegal": 1.0, "steps": 1.0}
    worst = {"Taxi-v4": -100.0, "Blackjack-v1": -1.0}
    assert result.reward == pytest.approx(worst.get(id, 0.0))


def test_giving_up_is_never_better_than_playing():
    taxi = ENVIRONMENTS["Taxi-v4"]()
    taxi.reset(3, {"max_steps": 20})
    earned = sum(taxi.step("[dropoff]").reward for _ in range(19))
    assert earned + taxi.step("no").reward == -200.0


def parsed(space, text):
    return adapter._Numbers(space).parse(text)


def test_numbers_as_actions():
    pendulum = ENVIRONMENTS["Pendulum-v1"]()
    first = pendulum.reset(3, {})
    assert first.legal_actions == ["[-2]", "[-1]", "[0]", "[1]", "[2]"]
    assert not pendulum.step("the torque is [-1.5e0]").done
    assert not pendulum.step("-1").done
    assert pendulum.step("[2.01]").metrics["illegal"] == 1
    for text in ("[٣]", "{'(0,0)': ['F0']}", "[nan]", "[1 1]", "one"):
        assert parsed(pendulum._environment.action_space, text) is None

    assert parsed(spaces.MultiDiscrete([2, 3]), "[1, 2]").tolist() == [1, 2]
    assert parsed(spaces.MultiDiscrete([2, 3]), "[1, 3]") is None
    assert parsed(spaces.MultiDiscrete([2, 3]), "[1, 0.5]") is None
    assert parsed(spaces.MultiBinary(2), "1 0").tolist() == [1, 0]
    assert parsed(spaces.Box(-1, 1, (2, 2)), "[0.1 0.2 0.3 -1]").shape == (2, 2)
    assert parsed(spaces.Box(-1, 1, (2,)), "[0.1 1e999]") is None
    assert adapter._Named(spaces.Discrete(3, start=-1), ()).legal == ["[-1]", "[0]", "[1]"]
    assert adapter._Named(spaces.Discrete(3, start=-1), ()).parse("[1]") == 1


def test_one_of_your_own():
    class Count(gymnasium.Env):
        metadata = {"render_modes": ["ansi"]}  # noqa: RUF012
        action_space = spaces.Discrete(2)
        observation_space = spaces.Dict({"n": spaces.Discrete(9)})

        def __init__(self, render_mode=None):
            self.render_mode, self.n = render_mode, 0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return {"n": self.n}, {}

        def step(self, action):
            self.n += int(action)
            return {"n": self.n}, 1.0, self.n == 3, False, {}

        def render(self):
            return f"at \x1b[31m\x1b[1m{self.n}\x1b[0m of 3"

    gymnasium.register("Count-v0", Count)  # type: ignore[arg-type]
    try:
        mine: Any = adapter.environment(
            "Count-v0", rules="Count to 3.", illegal_reward=-1.0, reward_range=(-1, 9)
        )
        assert mine.name == "gymnasium/Count-v0"
        counting = mine()
        assert counting.reset(0, {}).text == "Count to 3.\n\nat [0] of 3"
        assert counting.step("[1]").observation.text == "at [1] of 3"
        assert counting.step("[2]").reward == -1.0
        Count.metadata = {"render_modes": []}
        assert mine().reset(0, {}).text == "Count to 3.\n\n{'n': 0}"
    finally:
        del gymnasium.registry["Count-v0"]


@pytest.mark.parametrize(
    ("id", "task", "message"),
    [
        (
            "FrozenLake-v1",
            {"slippery": True},
            "unknown task key 'slippery'; known are max_steps, rules",
        ),
        ("FrozenLake-v1", {"map_size": 1}, "map_size 1"),
        ("FrozenLake-v1", {"max_steps": MAX_STEPS + 1}, "max_steps 1001"),
        ("Taxi-v4", {"is_rainy": 1}, "is_rainy 1 is not one of False, True"),
    ],
)
def test_bad_tasks_are_named(id, task, message):
    with pytest.raises(ValueError, match=message):
        ENVIRONMENTS[id]().reset(0, task)


def test_what_is_left_to_other_packages():
    outdated = {"CartPole-v0"}
    left = {id for id in gymnasium.registry if id not in VIEWS} - outdated
    for id in left:
        entry = gymnasium.spec(id).entry_point
        family = entry.split(".")[2] if isinstance(entry, str) else "raises"
        assert family in NEED_MORE or not isinstance(entry, str), (id, entry)
