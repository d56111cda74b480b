"""`earl config`: every key described, a file with its defaults, and what a launch would refuse or start."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.machine.config import KeyDescription, app
from earl.config.descriptions import comment_of
from earl.config.load import load_run
from earl.errors import ConfigError, EarlError
from tests.support.paths import ROOT

TICTACTOE = ROOT / "examples" / "tictactoe.toml"


def printed(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(done.exception, EarlError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_key_has_a_description_and_an_advice_of_its_own():
    assert comment_of("trainer.lr").meaning == "Learning rate of AdamW."
    assert comment_of("trainer.lr").advice.startswith("About 1e-3 for a small model from scratch")
    assert comment_of("switch.verify_s").meaning.startswith("Seconds")  # of the class that it derives from
    assert comment_of("switch").meaning.startswith("Bounds of a switch")


def test_keys_are_listed_by_a_part_of_their_names():
    listed = json.loads(printed("keys", "trainer.lr", "--json"))
    assert [one["key"] for one in listed] == [
        "trainer.lr",
        "trainer.lr_final_fraction",
        "trainer.lr_warmup_steps",
    ]
    assert listed[0]["default"] == 1e-3 and listed[0]["takes"] == "a number, more than 0"
    (name,) = json.loads(printed("keys", "environment.name", "--json"))
    assert name["required"] and name["default"] is None
    lr = printed("keys", "trainer.lr")
    assert "default 0.001" in lr and "Learning rate of AdamW." in lr and "Lower it if reward" in lr


def test_a_key_is_listed_with_its_unit():
    limit, *_ = json.loads(printed("keys", "train_limit_s", "--json"))
    assert (limit["unit"], limit["takes"]) == ("seconds", "a number of seconds, at least 0")
    (serve,) = json.loads(printed("keys", "environment.serve", "--json"))
    assert (serve["unit"], serve["takes"]) == ("", "a text")


def test_keys_are_listed_by_their_descriptions_and_advice_in_any_case():
    described = [key["key"] for key in json.loads(printed("keys", "LEARNING RATE", "--json"))]
    assert "trainer.lr" in described and "warmup.lr" in described and "model.path" not in described
    advised = [key["key"] for key in json.loads(printed("keys", "DAPO's Clip-higher", "--json"))]
    assert advised == ["trainer.clip_high"]
    by_name_first = [key["key"] for key in json.loads(printed("keys", "Staleness", "--json"))]
    assert by_name_first[0] == "scheduler.staleness" and "deterministic" in by_name_first[1:]


@pytest.mark.parametrize("word", ["cp", "tp", "lr", "kl", "kv"])
def test_a_short_word_is_found_in_names_and_as_a_whole_word_of_texts(word: str):
    keys = json.loads(printed("keys", word, "--json"))
    named = [word in key["key"] for key in keys]
    assert named == sorted(named, reverse=True)
    for key in keys[sum(named) :]:
        words = re.findall(r"\w+", f"{key['description']} {key['advice']}".lower())
        assert word in words, key["key"]


def test_a_longer_word_is_also_found_at_the_begin_of_a_word_of_texts():
    key = KeyDescription("a.b", "a text", "", "", False, "Sharded over ranks, read by HTTP.", "Already 1.")
    assert key.mentions("shard") and key.mentions("HTTP") and key.mentions("by http") and key.mentions("rank")
    assert not any(map(key.mentions, ("tp", "lr", "sha", "ready", "a text")))
    assert key.is_named("A.") and not key.is_named("shard")


def test_words_that_no_key_has_get_a_remedy():
    nothing = r"no key has 'zzz' in its name or its description; leave it out to see all keys"
    with pytest.raises(ConfigError, match=nothing):
        printed("keys", "zzz")
    with pytest.raises(
        ConfigError, match=r"no key has 'trainer.learning_rate' .*; did you mean trainer\.lr\?"
    ):
        printed("keys", "trainer.learning_rate")


def test_what_is_shown_is_a_run_file_of_the_same_run(tmp_path: Path):
    shown = tmp_path / "shown.toml"
    shown.write_text(printed("show", TICTACTOE, "--trainer.lr", "0.5"))
    written: dict[str, Any] = tomllib.loads(shown.read_text())
    assert written["trainer"]["lr"] == 0.5 and written["scheduler"]["lease_s"] == 30.0
    assert load_run(shown) == load_run(TICTACTOE, [("trainer.lr", "0.5")])


def test_a_check_says_what_a_launch_would_start_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    said = printed("check", TICTACTOE)
    assert "runs/tictactoe" in said and "rollout-0" in said and "120 steps" in said
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"--trainer\.lr -1 is wrong"):
        printed("check", TICTACTOE, "--trainer.lr", "-1")
    (tmp_path / "runs" / "tictactoe").mkdir(parents=True)
    (tmp_path / "runs" / "tictactoe" / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="exists already; continue it with: earl resume"):
        printed("check", TICTACTOE)
