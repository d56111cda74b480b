"""Run files: what is read, what is overridden, and the one line that each mistake gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from earl.config import keys
from earl.config.load import load_run, split_overrides
from earl.errors import ConfigError, IllegalParallelism, ModelNotFound, TransportUnavailable, UnsupportedModel
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
TICTACTOE = EXAMPLES / "tictactoe.toml"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_load(path: Path):
    config = load_run(path, elsewhere=True)
    assert config.mixture[0].section.serve.startswith("earl.env.adapters.")


def test_overrides_are_typed_by_the_schema():
    arguments = [
        "run.toml",
        "--trainer.lr",
        "1e-4",
        "--scheduler.steps=5",
        "--json",
        "--evaluation.at_start",
        "false",
    ]
    rest, overrides = split_overrides(arguments)
    assert rest == ["run.toml", "--json"]
    more = [
        ("model.observation_prefix", "123"),
        ("environment.task.opponent", "minimax"),
        ("environment.task.n", "3"),
    ]
    config = load_run(TICTACTOE, [*overrides, *more])
    assert config.trainer.lr == 1e-4
    assert config.scheduler.steps == 5
    assert config.evaluation.at_start is False
    assert config.model.observation_prefix == "123"  # a text needs no quotes
    assert config.mixture[0].task == {"opponent": "minimax", "player": 0, "n": 3}


def test_the_last_override_wins():
    assert load_run(TICTACTOE, [("trainer.lr", "1"), ("trainer.lr", "2e-3")]).trainer.lr == 2e-3


def test_an_override_without_a_value_is_an_error():
    with pytest.raises(ConfigError, match=r"--trainer\.lr has no value"):
        split_overrides(["run.toml", "--trainer.lr"])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("trainer.lrr", "trainer.lr"),
        ("trainr.lr", "trainer.lr"),
        ("scheduler.step", "scheduler.steps"),
        ("trainer.learning_rate", "trainer.lr"),
        ("trainer.temperature", "scheduler.temperature"),
        # Training samples from all tokens.
        ("scheduler.top_p", "evaluation.top_p"),
        ("rollout.max_new_token", "rollout.max_new_tokens"),
    ],
)
def test_an_unknown_key_suggests_the_right_one(written: str, meant: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=rf"no key {written}; did you mean {meant}\?"):
        load_run(TICTACTOE, [(written, "1")])
    section, key = written.split(".")
    name = "misspelt.toml"
    (tmp_path / name).write_text(f'name = "x"\n[environment]\nname = "e"\n[{section}]\n{key} = 1\n')
    with pytest.raises(ConfigError, match=r"there is no key .*; did you mean"):
        load_run(tmp_path / name)


def test_an_unknown_key_with_nothing_near_points_to_the_list():
    with pytest.raises(ConfigError, match=r"no key trainer\.zzzzzz; `earl config keys` lists the keys"):
        load_run(TICTACTOE, [("trainer.zzzzzz", "1")])
    with pytest.raises(ConfigError, match=r"there is no key scheduler\.nope; `earl config keys`"):
        load_run(TICTACTOE, [("scheduler.nope", "1")])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trainer.lr", "abc", r'^--trainer\.lr "abc" is wrong; give a number, more than 0$'),
        ("trainer.lr", "-1", r"^--trainer\.lr -1 is wrong; give a number, more than 0$"),
        ("rollout.engine", "tgi", r'--rollout\.engine "tgi" is wrong; give one of "torch", "vllm", "sglang"'),
        (
            "scheduler.steps",
            "1.5",
            r"--scheduler\.steps 1\.5 is wrong; give a whole number of steps, at least 0",
        ),
        (
            "gateway.max_action_characters",
            "255",
            r"--gateway\.max_action_characters 255 is wrong; "
            r"give a whole number of characters, at least 256 and at most 1048576$",
        ),
        ("gateway.max_action_characters", "1048577", r"1048577 is wrong"),
        ("evaluation.at_end", "maybe", r"evaluation\.at_end.*give true or false"),
        ("trainer.betas", "[0.9]", r"trainer\.betas.*give a list"),
        ("scheduler", "1", r"--scheduler is a section.*--scheduler\.group_size"),
    ],
)
def test_a_wrong_value_names_key_value_and_remedy(key: str, value: str, message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        load_run(TICTACTOE, [(key, value)])
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_profile_that_is_not_there_is_named():
    with pytest.raises(
        ConfigError, match=r"scheduler\.profile = 'none\.csv' is not a file; .*`earl profile`"
    ):
        load_run(TICTACTOE, [("scheduler.profile", "none.csv")])


def test_a_missing_key_is_named(tmp_path: Path):
    (tmp_path / "run.toml").write_text('name = "x"\n')
    with pytest.raises(
        ConfigError, match=r"environment is missing; add the section \[environment\] with the key name$"
    ):
        load_run(tmp_path / "run.toml")


def test_a_missing_file_and_a_broken_one(tmp_path: Path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_run(tmp_path / "no.toml")
    for text, line, wrong in (
        ("name = \n", 1, "'name ='"),
        ("a = 1\nname = ", 2, "'name ='"),
        ('a = 1\n[model\npath = "x"\n', 2, "'[model'"),
        ("a = 1\na = 2\n\n", 2, "'a = 2'"),
    ):
        (tmp_path / "broken.toml").write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_run(tmp_path / "broken.toml")
        assert f"is not TOML: line {line}, {wrong}: " in str(caught.value), str(caught.value)
    (tmp_path / "broken.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: it is not UTF-8 text"):
        load_run(tmp_path / "broken.toml")


def test_a_file_is_blamed_for_its_own_mistakes_alone_and_all_of_them_are_named(tmp_path: Path):
    run = tmp_path / "run.toml"
    run.write_text(
        'name = "x"\n[environment]\nname = "e"\n[trainer]\nlrr = 1\nclip_low = 2\n[scheduler]\nstep = 3\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_run(run)
    said = str(caught.value)
    for part in (
        "no key trainer.lrr; did you mean trainer.lr",
        "no key scheduler.step",
        "trainer.clip_low = 2 is",
    ):
        assert part in said, said
    assert said.count(str(run)) == 1 and "\n" not in said


def test_heads_that_tp_does_not_divide():
    with pytest.raises(IllegalParallelism, match=r"rollout\.tp = 3 .* use one of 1, 2, 4"):
        load_run(TICTACTOE, [("rollout.tp", "3")])


def test_a_checkpoint_is_judged_by_its_configuration(tmp_path: Path):
    with pytest.raises(ModelNotFound, match="is not a directory"):
        load_run(TICTACTOE, [("model.path", str(tmp_path / "none"))])
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        load_run(TICTACTOE, [("model.path", str(tmp_path))])
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 9, "num_key_value_heads": 3}))
    assert load_run(TICTACTOE, [("model.path", str(tmp_path)), ("rollout.tp", "3")]).rollout.tp == 3
    with pytest.raises(IllegalParallelism, match="9 heads and 3 key-value heads; use one of 1, 3"):
        load_run(TICTACTOE, [("model.path", str(tmp_path)), ("rollout.tp", "2")])
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelNotFound, match="names no attention heads"):
        load_run(TICTACTOE, [("model.path", str(tmp_path))])


def test_without_a_selector_a_sequence_is_as_long_as_the_trainers_layout_takes():
    two = [("trainer.microbatch_tokens", "64"), ("trainer.ranks", "2")]
    assert load_run(TICTACTOE, two).longest_sequence == 80
    # Without a profile the selector never raises cp.
    unmeasured = [*two, ("scheduler.profile_s", "0")]
    assert load_run(TICTACTOE, unmeasured).longest_sequence == 64
    static = [*two, ("scheduler.selector", "static")]
    assert load_run(TICTACTOE, static).longest_sequence == 64
    assert load_run(TICTACTOE, [*static, ("trainer.cp", "2")]).longest_sequence == 80


EXACT = {"deterministic": "true", "scheduler.selector": "observe"}


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ({"rollout.max_context_tokens": "4096"}, ConfigError),
        ({"rollout.max_new_tokens": "128"}, ConfigError),
        ({"trainer.microbatch_tokens": "64"}, ConfigError),
        ({"scheduler.group_size": "1"}, ConfigError),
        ({"trainer.ranks": "8", "trainer.minibatches": "64"}, ConfigError),
        ({"trainer.ranks": "3", "trainer.tp": "2"}, IllegalParallelism),
        ({"trainer.ranks": "3", "trainer.tp": "3"}, IllegalParallelism),
        ({"trainer.ranks": "4", "trainer.tp": "2", "trainer.cp": "4"}, IllegalParallelism),
        ({"rollout.engine": "sglang", "rollout.device": "cpu"}, ConfigError),
        ({"rollout.engine": "vllm", "rollout.device": "cpu"}, UnsupportedModel),
        ({"rollout.engine": "sglang", "rollout.device": "cuda", "rollout.drafts": '["task"]'}, ConfigError),
        ({"rollout.drafts": '["suffix"]'}, ConfigError),
        ({**EXACT, "scheduler.staleness": "1", "scheduler.train_limit_s": "9"}, ConfigError),
        ({**EXACT, "scheduler.staleness": "0", "scheduler.train_limit_s": "9"}, ConfigError),
        ({**EXACT, "scheduler.staleness": "0", "scheduler.selector": "on"}, ConfigError),
        ({"data_plane.arena_dir": "/no/such/tmpfs"}, ConfigError),
        ({"data_plane.bind": "0.0.0.0"}, ConfigError),
        ({"data_plane.require": "shm", "data_plane.transport": "ucx"}, TransportUnavailable),
        ({"data_plane.require": "rdma", "data_plane.transport": "shm"}, TransportUnavailable),
        ({"data_plane.require": "rdma", "data_plane.transport": "ucx"}, TransportUnavailable),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value.__name__,
)
def test_contradictions_between_keys(overrides: dict[str, str], error: type[ConfigError]):
    with pytest.raises(error) as caught:
        load_run(TICTACTOE, list(overrides.items()))
    assert caught.value.remedy


def test_every_key_has_words_for_its_type():
    for key, field in keys.fields():
        assert keys.describe(field.annotation), key


def test_run_files_that_name_the_device_of_arenas_still_load(tmp_path: Path):
    file = tmp_path / "run.toml"
    text = 'name = "a"\n[environment]\nname = "open_spiel/tic_tac_toe"\n[data_plane]\narena_device = "{}"\n'
    file.write_text(text.format("cpu"))
    assert load_run(file).data_plane == load_run(TICTACTOE).data_plane
    file.write_text(text.format("cuda:0"))
    with pytest.raises(ConfigError, match="arena_device"):
        load_run(file)
