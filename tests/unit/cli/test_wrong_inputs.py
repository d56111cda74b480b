"""Wrong files, keys, names and states: each gets one line with value and remedy, and its exit code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.refused import fits, refused, wrong_folder

# Each with a run as its argument.
RUN_COMMANDS = [
    "status",
    "top",
    "stop",
    "rm",
    "resume",
    "report",
    "explain",
    "trace",
    "dashboard",
    "eval",
    "chat",
    "export --to exported",
    "sink --to tensorboard",
]
# By the exit code: a command line, the message and the remedy; "…" stands for what a machine decides.
NAME_RULE = "give a text that matches ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
TOML_RULE = 'correct that line; texts are written in quotes: name = "first"'
NO_RUN_FILE = ("run file none.toml does not exist", "see examples/ for run files")
NO_CHECKPOINT = "it has none: a run saves them every trainer.checkpoint_every steps and at its end"
CASES = {
    2: [
        # Files.
        ("train none.toml", *NO_RUN_FILE),
        ("config show none.toml", *NO_RUN_FILE),
        ("doctor none.toml", *NO_RUN_FILE),
        ("profile none.toml", *NO_RUN_FILE),
        (
            "train no_value.toml",
            "run file no_value.toml is not TOML: line 1, 'name =': invalid value",
            TOML_RULE,
        ),
        (
            "train no_bracket.toml",
            "run file no_bracket.toml is not TOML: line 2, '[trainer': expected ']' at the end of a table "
            "declaration",
            TOML_RULE,
        ),
        (
            "train binary.toml",
            "run file binary.toml cannot be read: it is not UTF-8 text",
            "give a TOML file",
        ),
        ("train folder.toml", "run file folder.toml cannot be read: is a directory", "give a TOML file"),
        ("init ok --example tictactoe", "ok.toml exists already", "choose another name, or remove it"),
        (
            "init x --example chess",
            "there is no example 'chess'",
            "give one of connect_four, … tictactoe",
        ),
        # Keys.
        (
            "train three.toml",
            "three.toml: there is no key trainer.lrr; did you mean trainer.lr. Also: there is no key nope; "
            '`earl config keys` lists the keys. trainer.lr = "a" is wrong',
            "give a number, more than 0",
        ),
        (
            "train empty.toml",
            f"empty.toml: name is missing; {NAME_RULE.replace('give', 'add name,')}. Also: environment is "
            "missing",
            "add the section [environment] with the key name",
        ),
        ("train parent.toml", 'parent.toml: name = "../x" is wrong', NAME_RULE),
        (
            "train two.toml",
            "two.toml: trainer.lr = -1 is wrong; give a number, more than 0. Also: scheduler.group_size = 0 "
            "is wrong",
            "give a whole number of episodes, at least 1",
        ),
        (
            "train text.toml",
            'text.toml: scheduler.steps = "many" is wrong',
            "give a whole number of steps, at least 0",
        ),
        ("train ok.toml --trainer.lr", "--trainer.lr has no value", "write --trainer.lr VALUE"),
        ("train ok.toml --trainer.lr fast", '--trainer.lr "fast" is wrong', "give a number, more than 0"),
        (
            "train ok.toml --trainer.nope 1",
            "the command line: there is no key trainer.nope",
            "`earl config keys` lists the keys",
        ),
        (
            "train ok.toml --trainer.learning_rate 1",
            "the command line: there is no key trainer.learning_rate",
            "did you mean trainer.lr?",
        ),
        (
            "train ok.toml --scheduler.steps -1",
            "--scheduler.steps -1 is wrong",
            "give a whole number of steps, at least 0",
        ),
        (
            "train ok.toml --rollout.engine fast",
            '--rollout.engine "fast" is wrong',
            'give one of "torch", "vllm", "sglang"',
        ),
        (
            "train ok.toml --data_plane.arena_dir /none",
            "data_plane.arena_dir = '/none' is not a directory",
            "give a tmpfs, on Linux /dev/shm",
        ),
        (
            "train ok.toml --switch.load_s 301",
            "switch.load_s = 301 is more than switch.prepare_s = 300, of which it is a part",
            "give at most 300, or raise switch.prepare_s",
        ),
        (
            "train ok.toml --scheduler.bind nowhere",
            'scheduler.bind = "nowhere" is no address',
            'give "host:port", for example "127.0.0.1:0"',
        ),
        (
            "config keys nope",
            "no key has 'nope' in its name or its description",
            "leave it out to see all keys",
        ),
        # Options and commands.
        ("train", "earl train needs RUN.toml", "see earl train --help"),
        ("train ok.toml extra", "earl train takes no argument 'extra'", "see earl train --help"),
        (
            "train ok.toml --lr 1e-4",
            "there is no option --lr",
            "did you mean --trainer.lr or --warmup.lr?",
        ),
        ("train ok.toml --sed 3", "there is no option --sed", "did you mean --seed?"),
        ("train ok.toml --seed x", "--seed x is wrong", "give a whole number"),
        ("train ok.toml --name", "--name has no value", "write --name VALUE"),
        ("tain ok.toml", "there is no command earl tain", "did you mean train?"),
        ("bench nope", "there is no command earl bench nope", "see earl bench --help for those there are"),
        ("eval --episodes 0", "--episodes 0 is wrong", "give at least 1"),
        (
            "logs t1 --since yesterday",
            "--since 'yesterday' is not a duration",
            "give, for example, 90s, 10m, 2h or 1d",
        ),
        ("logs t1 --level loud", "--level 'loud' is not a level", "give one of debug, info, warning, error"),
        ("tokens show", "earl tokens show needs ROLE", "see earl tokens show --help"),
        (
            "parallelism set nowhere tp=2",
            "there is no stage 'nowhere'",
            "name one of rollout, reference, trainer",
        ),
        ("env test nomodule", "'nomodule' does not name an object", 'give "package.module:Class"'),
        (
            "env new Bad-Name",
            "'Bad-Name' is not a valid project name",
            "use lower-case letters, digits and single dashes, like word-guess",
        ),
        ("env new earl", "'earl' is the name of another Python package", "choose another one"),
        (
            "env play",
            "no environment to play is given",
            "give module:Class, or --gateway HOST:PORT NAME",
        ),
        ("sink t1 --to nowhere", "there is no sink 'nowhere'", "give one of tensorboard, wandb"),
        # Names of runs.
        (
            "train ok.toml --name t1",
            "run directory runs/t1 exists already",
            "continue it with: earl resume runs/t1, or start another with --name NAME",
        ),
        (
            "train ok.toml --resume --name none",
            "there is no run to resume in runs/none",
            "leave --resume out to start one",
        ),
        ("train ok.toml --name a/b", '--name "a/b" is wrong', NAME_RULE),
        *(
            (
                f"{name} none",
                "there is no run 'none', neither as a directory nor in ./runs",
                "earl ls lists the runs",
            )
            for name in RUN_COMMANDS
        ),
        (
            "status t11",
            "there is no run 't11', neither as a directory nor in ./runs",
            "did you mean t1?",
        ),
        (
            "status runs/broken",
            "runs/broken/run.json is broken: it is not JSON",
            "remove the directory, or restore the file",
        ),
        (
            "status runs/hollow",
            "runs/hollow is not a run directory: it has no run.json",
            "give one like runs/demo-seed0",
        ),
        ("logs t1 nope", "runs/t1 has no process 'nope'", "none of its processes has logged yet"),
        ("export t1 --to runs", "runs exists already", "choose another --to, or remove it"),
        (
            "export t1 --to x --dtype int4",
            "--dtype int4 is neither float32 nor bfloat16",
            "give one of the two",
        ),
        (
            "export t1 --to x --best --version 3",
            "--version, --best and --latest are three ways to choose the version",
            "give one of them",
        ),
        ("compare t1", "runs/t1 is only one run", "name two or more, the baseline first"),
        ("compare t1 t1", "runs/t1 is named twice", "name each run once"),
        (
            "explain t1 --step 99",
            "runs/t1 has no decision for rollout at step 99",
            "it has some for steps 2 to 13",
        ),
        ("ls nowhere", "there is no folder nowhere", "name one, or leave it out for ./runs"),
    ],
    3: [
        (
            "train ok.toml --model.path /none",
            "model.path = '/none' is not a directory",
            "give a local transformers checkpoint directory, or remove the key to train a model from scratch",
        )
    ],
    4: [
        (
            "train ok.toml --rollout.tp 3",
            "rollout.tp = 3 does not divide model.scratch's 8 heads and 8 key-value heads",
            "use one of 1, 2, 4, 8",
        ),
        (
            "parallelism set rollout tp=x --run t1",
            "'tp=x' is no parallelism",
            'write degrees, each once, like "tp=4" or "dp=2,tp=4"',
        ),
    ],
    6: [
        (
            "train ok.toml --scheduler.bind 0.0.0.0:7000",
            "bind 0.0.0.0:7000 is off loopback without TLS and a token",
            "set EARL_TLS_CERT, EARL_TLS_KEY and EARL_TOKENS (earl certs new, earl tokens new), or bind "
            "127.0.0.1",
        )
    ],
    9: [("export t1 --to x", "runs/t1/checkpoints has no checkpoint latest", NO_CHECKPOINT)],
    11: [
        (
            "env list --gateway 127.0.0.1:1",
            "ListEnvironments at 127.0.0.1:1 failed: nothing listens there",
            "check that the service runs and listens there",
        )
    ],
}
LINES = [(line, code, message, remedy) for code, cases in CASES.items() for line, message, remedy in cases]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wrong_folder(tmp_path_factory.mktemp("wrong"))


@pytest.fixture
def here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, in which the command is typed."""
    here = tmp_path / "here"
    shutil.copytree(folder, here)
    monkeypatch.chdir(here)
    return here


def test_there_are_forty():
    assert len({line for line, _, _, _ in LINES}) >= 40


@pytest.mark.parametrize(("line", "code", "message", "remedy"), LINES, ids=[case[0] for case in LINES])
def test_a_wrong_input_is_one_line_and_changes_nothing(
    line: str,
    code: int,
    message: str,
    remedy: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    ended, text = refused(line, here, monkeypatch, capsys)
    assert ended == code
    assert fits(f"{message}; {remedy}").fullmatch(text), text
