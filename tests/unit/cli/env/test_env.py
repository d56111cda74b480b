"""`earl env`: what its commands refuse before anything is started, and how what they find is shown."""

import importlib
import io
import json
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from earl.cli.env import app, examination, project
from earl.cli.env.examination import closing, exit_code, lines
from earl.cli.env.games import Shown, chosen_environment
from earl.cli.env.listing import table
from earl.cli.env.play import action_of
from earl.cli.env.project import SKELETON
from earl.cli.env.serving import places
from earl.cli.lib.gateway_codec import GatewayEnvironment, signature
from earl.config.run import RunConfig
from earl.env import Observation
from earl.env.conformance.bench import Bench, Subject
from earl.env.conformance.card import Card, Check, CheckVerdict
from earl.env.conformance.plan import ExamPlan
from earl.env.tool_calls import calls_in
from earl.errors import ConfigError, UnknownEnvironment


def refused(*arguments: str) -> str:
    """The error of a command line."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("test",), "no environment to test is given; give module:Class"),
        (("test", "module"), "'module' does not name an object"),
        (("test", "a:B", "--only", "leek"), "there is no check 'leek'"),
        (("test", "a:B", "--task", "[1]"), "--task '[1]' is not a JSON object"),
        (("test", "a:B", "--task", "{"), "is not JSON"),
        (("test", "a:B", "--script", "/no/such/file"), "/no/such/file cannot be read"),
        (("serve", "a:B", "--gateway", ""), "no gateway is given; give --gateway"),
        (("serve", "a", "--gateway", "127.0.0.1:1"), "'a' does not name an object"),
        (("serve", "a:B", "--gateway", "h:1", "--listen", "h:2"), "exclude each other"),
        (("serve", "a:B", "--listen", "127.0.0.1:65530", "--replicas", "9"), "too few ports after it"),
        (("serve", "a:B", "--listen", "7000"), "'7000' is not host:port"),
        (("test", "--listen", "h:1", "--dial", "h:2"), "are two hosts"),
        (("play",), "no environment to play is given"),
        (("play", "a:B", "c", "d"), "cannot be played at once"),
        (("list", "--gateway", ""), "no gateway is given"),
        (("new", "Word"), "'Word' is not a valid project name"),
        (("new", "json"), "the name of another Python package"),
        (("new", "a--b"), "is not a valid project name"),
        (("new", "class"), "is not a valid project name"),
    ],
)
def test_a_mistake_names_the_value_and_the_remedy(
    arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("EARL_GATEWAY", raising=False)
    assert words in refused(*arguments)


# --- a new project --------------------------------------------------------------------------


def test_a_new_project_is_whole_and_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    project.new("word-guess", tmp_path)
    root = tmp_path / "word-guess"
    assert "earl env play word_guess:WordGuess" in capsys.readouterr().out
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) == len(list(SKELETON.rglob("*.template")))
    assert not [path for path in files if "$" in path.read_text()]
    config = RunConfig.model_validate(tomllib.loads((root / "run.toml").read_text()))
    assert config.mixture[0].section.serve == "word_guess:WordGuess"
    monkeypatch.syspath_prepend(str(root))
    module = importlib.import_module("word_guess")
    for line in (root / "episodes.jsonl").read_text().splitlines():
        recorded = json.loads(line)
        game = module.WordGuess()
        game.reset(recorded["seed"], {})
        assert sum(game.step(action).reward for action in recorded["actions"]) == recorded["return"]
    with pytest.raises(ConfigError, match="already exists"):
        project.new("word-guess", tmp_path)


# --- playing --------------------------------------------------------------------------------


def test_what_a_typed_line_stands_for():
    shown = Shown(Observation("board", ["[0]", "[4]"]))
    assert action_of("[4]", shown) == "[4]" and action_of("/2", shown) == "[4]"
    assert action_of(" 3 ", shown) == " 3 " and action_of("", shown) == ""
    called = action_of('/call add {"a": 1}', shown)
    assert [(call.name, call.arguments) for call in called.tool_calls] == [("add", {"a": 1})]
    assert calls_in(str(called)) != []
    for line in ("/3", "/0", "/call", "/call add {", "/call add [1]", "/what"):
        with pytest.raises(ConfigError):
            action_of(line, shown)


def test_which_environment_is_meant():
    assert chosen_environment("", ["a"], "m:C") == "a" and chosen_environment("b", ["a", "b"], "m:C") == "b"
    with pytest.raises(UnknownEnvironment, match="m:C serves 2; name one of a, b"):
        chosen_environment("", ["b", "a"], "m:C")
    with pytest.raises(UnknownEnvironment, match="does not serve 'c'"):
        chosen_environment("c", ["a"], "m:C")


def test_replicas_listen_at_ports_in_a_row():
    assert places("[::1]:7000", 2) == [["--listen", "[::1]:7000"], ["--listen", "[::1]:7001"]]
    assert places("127.0.0.1:0", 2) == [["--listen", "127.0.0.1:0"]] * 2


# --- as text --------------------------------------------------------------------------------


def test_tools_as_a_person_reads_them():
    properties = {"a": {"type": "integer"}, "how": {"enum": ["up", 2]}, "c": {"type": ["string", "null"]}}
    tool = {"name": "add", "parameters": {"properties": properties, "required": ["a"]}}
    assert signature(tool) == 'add(a: integer, how?: "up" | 2, c?: string | null)'
    assert signature({"name": "now"}) == "now()"


def test_what_hosts_name_is_shown_as_it_is():
    name, tool = (
        "[/red]game[bold]",
        {"name": "t\x1b[2J", "parameters": {"properties": {"a": {"type": "list[int]"}}}},
    )
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(table([GatewayEnvironment(name, "", "", None, [tool], 1, 1, 0, 0, 0)]))
    text = console.export_text()
    assert name in text and "t␛[2J(a?: list[int])" in text


def test_a_check_has_its_remedy_below_it_if_there_is_something_to_do():
    failed = Check("leaks", "a", CheckVerdict.FAIL, "memory grows", "release it")
    assert [line.plain for line in lines(failed)] == [
        "fail  leaks         memory grows",
        "                    -> release it",
    ]
    passed = Check("reset", "a", CheckVerdict.PASS, "fine")
    assert len(lines(passed)) == 1
    assert closing(Card("h", ["a", "b"], [failed, passed], 2.04)).plain == "a, b: 1 pass, 1 fail, in 2.0 s"


def test_an_examination_without_time_for_all_says_so_and_has_an_exit_code():
    passed = Check("reset", "a", CheckVerdict.PASS, "fine")
    failed = Check("policy", "a", CheckVerdict.FAIL, "raises")
    left_out = [f"{name} of a" for name in ("leaks", "speed", "strangers", "drain")]
    card = Card("h", ["a"], [passed], 120.0, left_out)
    assert closing(card).plain.splitlines()[1] == (
        "no time for leaks of a, speed of a, strangers of a and 1 more; give more with --total-s"
    )
    assert exit_code(card) == 12
    assert exit_code(Card("h", ["a"], [passed, failed], 120.0, left_out)) == 1
    assert exit_code(Card("h", ["a"], [passed], 3.0)) == 0


def test_a_check_that_takes_long_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch):
    announced: list[tuple] = []
    monkeypatch.setattr(
        examination,
        "waiting",
        lambda what, most_s, progress: announced.append((what, most_s, progress())) or nullcontext(),
    )
    bench = Bench(None, ExamPlan(leak_s=60.0))  # type: ignore[arg-type]
    subject = Subject(bench, SimpleNamespace(name="a\x1b"), leak_episodes=(25, 1000))
    for name in ("speed", "leaks"):
        with examination.checking(name, subject):
            pass
    assert announced == [("checking a␛: speed", 0.0, (0, 0)), ("checking a␛: leaks", 60.0, (25, 1000))]


def test_every_command_has_help():
    assert isinstance(app, typer.Typer)
    out = CliRunner().invoke(app, ["--help"]).output
    assert all(f" {name} " in out for name in ("new", "test", "serve", "play", "list"))
