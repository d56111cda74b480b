"""Plays the environments of examples/mixture.toml: its vocabulary has every word that they show."""

from __future__ import annotations

from typing import Any

from earl.config.load import load_run
from earl.env.serve import load
from tests.support.paths import ROOT

MIXTURE = ROOT / "examples" / "mixture.toml"


def test_the_example_has_two_games_and_a_text_task_that_its_vocabulary_can_say() -> None:
    config = load_run(MIXTURE, [])
    words = set(config.model.scratch.words)  # type: ignore[union-attr]
    games = [entry.section for entry in config.mixture if entry.section.name.startswith("open_spiel/")]
    assert len(games) == 2 and len(config.mixture) == 3
    for entry in config.mixture:
        environment = load(entry.section.serve)[entry.section.name]()
        observation: Any = environment.reset(3, dict(entry.section.task))
        done = False
        while not done:
            text = " ".join([observation.text, *observation.legal_actions])
            for sign in "[].:":
                text = text.replace(sign, f" {sign} ")
            assert set(text.split()) <= words, entry.label
            outcome: Any = environment.step(observation.legal_actions[-1])
            observation, done = outcome.observation, outcome.done
