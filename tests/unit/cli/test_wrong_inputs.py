"""Wrong files, keys, names and states: each gets one line with value and remedy, and its exit code."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from earl.cli.main import main
from tests.support.paths import ROOT
from tests.support.recorded import recorded

FILES = {
    "no_value.toml": "name = \n",
    "no_bracket.toml": 'name = "x"\n[trainer\nlr=1\n',
    "three.toml": 'name="x"\n[environment]\nname="e"\n[trainer]\nlrr=1\nlr="a"\n[nope]\nx=1\n',
    "empty.toml": "",
    "parent.toml": 'name="../x"\n[environment]\nname="e"\n',
    "two.toml": 'name="x"\n[environment]\nname="e"\n[trainer]\nlr=-1\n[scheduler]\ngroup_size=0\n',
    "text.toml": 'name="x"\n[environment]\nname="e"\n[scheduler]\nsteps="many"\n',
    "ok.toml": (ROOT / "examples" / "tictactoe.toml").read_text(),
}
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
]
# By the exit code: a command line, and how the text after "earl: error: " begins.
CASES = {
    2: [
        # Files.
        ("train none.toml", "run file none.toml does not exist; see examples/ for run files"),
        (
            "train no_value.toml",
            "run file no_value.toml is not TOML: line 1, 'name =': invalid value; correct",
        ),
        ("train no_bracket.toml", "run file no_bracket.toml is not TOML: line 2, '[trainer': expected ']'"),
        ("train binary.toml", "run file binary.toml cannot be read: it is not UTF-8 text; give a TOML file"),
        ("train folder.toml", "run file folder.toml cannot be read: Is a directory; give a TOML file"),
        ("config show none.toml", "run file none.toml does not exist; see examples/ for run files"),
        ("doctor none.toml", "run file none.toml does not exist; see examples/ for run files"),
        ("profile none.toml", "run file none.toml does not exist; see examples/ for run files"),
        ("init ok --example tictactoe", "ok.toml exists already; choose another name, or remove it"),
        ("init x --example chess", "there is no example 'chess'; give one of connect_four, "),
        # Keys.
        (
            "train three.toml",
            "three.toml: there is no key trainer.lrr; did you mean trainer.lr. Also: there is no key nope; "
            '`earl config keys` lists the keys. trainer.lr = "a" is wrong; give a number, more than 0',
        ),
        ("train empty.toml", "empty.toml: name is missing; add name, a text that matches ^[A-Za-z0-9]"),
        ("train parent.toml", 'parent.toml: name = "../x" is wrong; give a text that matches ^[A-Za-z0-9]'),
        (
            "train two.toml",
            "two.toml: trainer.lr = -1 is wrong; give a number, more than 0. Also: scheduler.group_size = 0 "
            "is wrong; give a whole number of trajectories, at least 1",
        ),
        (
            "train text.toml",
            'text.toml: scheduler.steps = "many" is wrong; give a whole number of steps, at least 0',
        ),
        ("train ok.toml --trainer.lr", "--trainer.lr has no value; write --trainer.lr VALUE"),
        ("train ok.toml --trainer.lr fast", '--trainer.lr "fast" is wrong; give a number, more than 0'),
        ("train ok.toml --trainer.nope 1", "the command line: there is no key trainer.nope; did you mean"),
        ("train ok.toml --scheduler.steps -1", "--scheduler.steps -1 is wrong; give a whole number of steps"),
        ("train ok.toml --rollout.engine fast", '--rollout.engine "fast" is wrong; give one of "torch"'),
        ("train ok.toml --data_plane.arena_dir /none", "data_plane.arena_dir = '/none' is not a directory;"),
        ("train ok.toml --switch.load_s 301", "switch.load_s = 301 is more than switch.prepare_s = 300, of"),
        ("train ok.toml --scheduler.bind nowhere", 'scheduler.bind = "nowhere" is no address; give "host:'),
        (
            "config keys nope",
            "no key has 'nope' in its name or its description; leave it out to see all keys",
        ),
        # Options and commands.
        ("train", "earl train needs RUN.toml; see earl train --help"),
        ("train ok.toml extra", "earl train takes no argument 'extra'; see earl train --help"),
        ("train ok.toml --lr 1e-4", "there is no option --lr; did you mean --trainer.lr or --warmup.lr?"),
        ("train ok.toml --sed 3", "there is no option --sed; did you mean --seed?"),
        ("train ok.toml --seed x", "--seed x is wrong; give a whole number"),
        ("train ok.toml --name", "--name has no value; write --name VALUE"),
        ("tain ok.toml", "there is no command earl tain; did you mean train?"),
        ("bench nope", "there is no command earl bench nope; see earl bench --help"),
        ("eval --episodes 0", "--episodes 0 is wrong; give at least 1"),
        ("logs t1 --since yesterday", "--since 'yesterday' is not a duration; give, for example, 90s, 10m"),
        ("logs t1 --level loud", "--level 'loud' is not a level; give one of debug, info, warning, error"),
        ("tokens show", "earl tokens show needs ROLE; see earl tokens show --help"),
        ("parallelism set nowhere tp=2", "there is no stage 'nowhere'; name one of rollout, reference,"),
        ("env test nomodule", "'nomodule' does not name an object; give \"package.module:Class\""),
        ("env new Bad-Name", "'Bad-Name' is not a valid project name; use lower-case letters, digits and"),
        ("env new earl", "'earl' is the name of another Python package; choose another one"),
        ("env play", "no environment to play is given; give module:Class, or --gateway HOST:PORT NAME"),
        # Names and states of runs.
        ("train ok.toml --name t1", "run directory runs/t1 exists already; continue it with: earl resume"),
        ("train ok.toml --resume --name none", "there is no run to resume in runs/none; leave --resume out"),
        ("train ok.toml --name a/b", '--name "a/b" is wrong; give a text that matches ^[A-Za-z0-9]'),
        *(
            (f"{name} none", "there is no run 'none', neither as a directory nor in ./runs; earl ls lists")
            for name in RUN_COMMANDS
        ),
        ("status runs/broken", "runs/broken/run.json is broken: it is not JSON; remove the directory, or"),
        ("status runs/hollow", "runs/hollow is not a run directory: it has no run.json; give one like"),
        ("logs t1 nope", "runs/t1 has no process 'nope'; name one of "),
        ("export t1 --to runs", "runs exists already; choose another --to, or remove it"),
        ("export t1 --to x --dtype int4", "--dtype int4 is neither float32 nor bfloat16; give one of the"),
        ("export t1 --to x --best --version 3", "--version, --best and --latest are three ways to choose"),
        ("compare t1", "runs/t1 is only one run; name two or more, the baseline first"),
        ("compare t1 t1", "runs/t1 is named twice; name each run once"),
        ("explain t1 --step 99", "runs/t1 has no decision for rollout at step 99; it has some for steps"),
        ("ls nowhere", "there is no folder nowhere; name one, or leave it out for ./runs"),
    ],
    3: [("train ok.toml --model.path /none", "model.path = '/none' is not a directory; give a local")],
    4: [
        ("train ok.toml --rollout.tp 3", "rollout.tp = 3 does not divide model.scratch's 8 heads and 8"),
        ("parallelism set rollout tp=x --run t1", "'tp=x' is no parallelism; write degrees, each once,"),
    ],
    6: [("train ok.toml --scheduler.bind 0.0.0.0:7000", "bind 0.0.0.0:7000 is off loopback without TLS")],
    11: [("env list --gateway 127.0.0.1:1", "ListEnvironments at 127.0.0.1:1 failed: nothing listens")],
}
LINES = [(line, code, text) for code, cases in CASES.items() for line, text in cases]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "binary.toml").write_bytes(b"\xff\xfe")
    (folder / "folder.toml").mkdir()
    for name in ("t1", "hollow", "broken"):
        (folder / "runs" / name).mkdir(parents=True)
    recorded(folder / "runs" / "t1")
    (folder / "runs" / "broken" / "run.json").write_text('{"name":')
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_there_are_forty():
    assert len({line for line, _, _ in LINES}) >= 40


@pytest.mark.parametrize(("line", "code", "text"), LINES, ids=[line for line, _, _ in LINES])
def test_a_wrong_input_is_one_line_and_changes_nothing(
    line: str,
    code: int,
    text: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    here = tmp_path / "here"
    shutil.copytree(folder, here)
    before = contents(here)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "argv", ["earl", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (code, "")
    assert err.startswith(f"earl: error: {text}") and err.count("\n") == 1
    assert contents(here) == before
