"""stack.placement: the keys that it decides, those that it leaves as they are, and what contradicts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.distribution import DECIDED, placement_text, with_placement
from earl.config.keys import field_of
from earl.config.load import Override, load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.rundir import to_toml

TABLE = 'name = "r"\n[environment]\nname = "e"\n'


def loaded(directory: Path, text: str = "", overrides: list[Override] | None = None) -> RunConfig:
    file = directory / "run.toml"
    file.write_text(TABLE + text)
    return load_run(file, overrides or [])


@pytest.mark.parametrize(
    ("placement", "decides"),
    [
        ("", {"share": False, "workers": 1, "engines": 1}),
        ("separate", {"share": False, "workers": 1, "engines": 1}),
        ("shared", {"share": True, "workers": 1, "engines": 1}),
        ("actors", {"share": False, "workers": 4, "engines": 1}),
    ],
)
def test_a_placement_decides_the_keys_that_the_run_file_leaves_out(
    tmp_path: Path, placement: str, decides: dict[str, Any]
):
    config = loaded(tmp_path, overrides=[("stack.placement", placement)])
    values = (config.stack.share, config.rollout.workers, config.rollout.engines)
    assert values == tuple(decides.values())
    # A launch writes every key down: the same run is read from that.
    (tmp_path / "again.toml").write_text(to_toml(config.model_dump(mode="json")))
    assert load_run(tmp_path / "again.toml") == config


def test_other_values_of_the_same_placement_stay(tmp_path: Path):
    text = '[stack]\nplacement = "actors"\nshare = true\n[rollout]\nworkers = 6\nmax_sequences = 8\n'
    config = loaded(tmp_path, text)
    assert (config.rollout.workers, config.rollout.max_sequences, config.stack.share) == (6, 8, True)
    turns = [("stack.placement", "shared"), ("stack.share", "alternate"), ("scheduler.selector", "static")]
    assert loaded(tmp_path, "", turns).alternates
    assert placement_text(config) == 'placement "actors": rollout.workers = 6, rollout.engines = 1'
    assert placement_text(loaded(tmp_path)) == ""


@pytest.mark.parametrize(
    ("placement", "key", "value", "needs"),
    [
        ("separate", "stack.share", "true", "it needs false"),
        ("separate", "stack.share", "alternate", "it needs false"),
        ("shared", "stack.share", "false", 'it needs true, or "alternate"'),
        ("actors", "rollout.workers", "3", "it needs at least 4"),
        ("actors", "rollout.engines", "2", "it needs 1"),
    ],
)
def test_a_key_that_contradicts_the_placement_is_refused(
    tmp_path: Path, placement: str, key: str, value: str, needs: str
):
    keys = [("stack.placement", placement), (key, value), ("scheduler.selector", "static")]
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, overrides=keys)
    assert f'stack.placement = "{placement}" with {key} = ' in str(refused.value)
    assert needs in str(refused.value) and f"remove {key}, or stack.placement" in str(refused.value)


def test_what_is_no_placement_is_refused_by_the_schema(tmp_path: Path):
    with pytest.raises(ConfigError, match=r'stack\.placement "fused" is wrong; give one of .*"actors"'):
        loaded(tmp_path, overrides=[("stack.placement", "fused")])
    for stack in ("text", {"placement": ["actors"]}, {}):
        assert with_placement({"stack": stack}) == {"stack": stack}


def test_every_decided_key_is_one_of_the_run_file_and_every_placement_decides():
    assert all(field_of(decided.name) for keys in DECIDED.values() for decided in keys)
    assert all(decided.agrees(decided.value) for keys in DECIDED.values() for decided in keys)
    field = field_of("stack.placement")
    assert field is not None and {"", *DECIDED} == set(field.annotation.__args__)  # type: ignore[union-attr]
