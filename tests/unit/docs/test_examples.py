"""The environment in examples/env_python plays as its docstring says, through the SDK's own loading."""

import random

from earl.env.serve import load
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "env_python"


def test_the_guessing_game_is_played_to_each_of_its_ends(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    game = load("guess:Guess")["example/guess"]()
    secret = random.Random(7).randrange(10)
    wrong = (secret + 1) % 10

    first = game.reset(7, {})
    assert first.text == "guess 4"
    assert f"[{secret}]" in first.legal_actions
    result = game.step(f"[{wrong}]")
    hint = "higher" if wrong < secret else "lower"
    assert (result.observation.text, result.reward, result.done) == (f"{hint} 3", 0.0, False)
    result = game.step(f"[{secret}]")
    assert (result.reward, result.done, result.metrics) == (1.0, True, {"win": 1.0})

    game.reset(7, {})
    assert [game.step(f"[{wrong}]").done for _ in range(4)] == [False, False, False, True]

    game.reset(7, {})
    result = game.step("perhaps 3")
    assert result.done and result.metrics == {"win": 0.0, "illegal": 1.0}
