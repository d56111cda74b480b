"""Every command of the documentation as it stands there, page after page, by somebody in a fresh clone.

A page is followed from its first command to its last; what it asks for in words (a run to look at) is typed
in between. A command that a page gets is executed here without more ado;
tests/unit/docs/test_docs_commands.py demands that its page is among these, or that NOT_EXECUTED says why not.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from earl.stack.ports import free_port
from tests.support.documented import NOT_EXECUTED, commands
from tests.support.launched import SMALL
from tests.support.newcomer import Going, Newcomer, newcomer
from tests.support.recorded import recorded


def keys(**more: str) -> str:
    """A run that learns little, on and on, as options."""
    given = SMALL | {"scheduler.steps": "9999"} | {key.replace("__", "."): v for key, v in more.items()}
    return shlex.join(text for key, value in given.items() for text in (f"--{key}", value))


# Trains to its end on a busy machine.
TRAIN_S = 480.0
# What README and quickstart have; who reads another page has read one of them.
ACTIVATE = ". .venv/bin/activate"
SYNOPSIS = "[--name N] [--section.key VALUE ...]"
SHORTENED = keys(
    rollout__engines="2",
    trainer__ranks="4",
    trainer__threads="1",
    rollout__threads="1",
    scheduler__profile_s="0",
)
# What stands for something else in the documentation, and what is typed in its place, page by page: the first
# that is found goes first. Of other brackets what is inside is typed.
PLACEHOLDERS: Mapping[str, Mapping[str, str]] = {
    "README.md": {"runs/smollm2-arithmetic": "runs/small"},
    "docs/environments.md": {"10.0.0.5:7000": "127.0.0.1:{port}"},
    "docs/operating.md": {
        f"earl up RUN.toml {SYNOPSIS}": f"earl up examples/tictactoe.toml --name M {SHORTENED}",
        f"RUN.toml {SYNOPSIS}": f"examples/tictactoe.toml --name N {keys()}",
    },
    "docs/dashboard.md": {"[RUN]": "runs/demo-seed0"},
    "docs/security.md": {"HOST:PORT": "127.0.0.1:{port}"},
}
# A run file's keys for a run of short steps that goes on and on; README's is trained to its end.
ENDLESS = """
[warmup]
batches = 0
[trainer]
minibatches = 1
passes = 1
[scheduler]
group_size = 4
batch_groups = 4
steps = 9999
[evaluation]
episodes = 16
"""
VIEWED = "EARL_TOKEN_FILE=viewer_token EARL_TLS_CA=tls/ca.pem earl top"
# How a command is typed that does not end by itself, or that asks; others are typed and have to end with 0.
PLAYED = "[4]\n/2\nnonsense\n/quit\n"
Typed = Callable[[Newcomer, str], str | Going]
TYPED: Mapping[str, Typed] = {
    "earl top": lambda me, line: me.sees(line, "tickets", "q"),
    VIEWED: lambda me, line: me.sees(line, "tickets", "q"),
    "earl env play": lambda me, line: me.says(line, PLAYED),
    "earl env serve": lambda me, line: me.begins(line, "ready"),
    "earl logs -f": lambda me, line: me.begins(line),
    "earl train": lambda me, line: me.interrupts(line, "rollout-0 ready", r"\] (warmup|train) [1-9]"),
    "earl resume N --foreground": lambda me, line: me.interrupts(line, r"\] train [1-9]"),
    "earl dashboard runs/demo-seed0 --bind": lambda me, line: me.begins(line, "http://"),
    "earl sink runs/demo-seed0 --to tensorboard --follow": lambda me, line: me.begins(line),
    "tensorboard": lambda me, line: me.begins(line, "http://"),
}


class Reading:
    """A page that somebody follows. said: what each command said; going: those that go on."""

    def __init__(self, me: Newcomer, page: str) -> None:
        self.me, self.page = me, page
        self.said: dict[str, str] = {}
        self.going: dict[str, Going] = {}
        left_out = NOT_EXECUTED.get(page, {})
        self._ahead = [one.text for one in commands(page) if one.text not in left_out]
        self.port = free_port("127.0.0.1")

    def typed(self, text: str) -> str:
        for placeholder, stands_for in PLACEHOLDERS.get(self.page, {}).items():
            text = text.replace(placeholder, stands_for.replace("{port}", str(self.port)))
        return text.replace("[", "").replace("]", "") if " [--" in text else text

    def follow(self, until: str = "") -> None:
        """The page's next commands, up to the one that begins so; all that are left without it."""
        while self._ahead and not (until and self._ahead[0].startswith(until)):
            text = self._ahead.pop(0)
            line = self.typed(text)
            way = next((way for start, way in TYPED.items() if line.startswith(start)), Newcomer.says)
            done = way(self.me, line)
            print(f"$ {line}\n{'' if isinstance(done, Going) else done}")  # shown if the test fails
            if isinstance(done, Going):
                self.going[text] = done
            else:
                self.said[text] = done
        assert self._ahead or not until, f"{self.page} has no command that begins with {until!r}"

    def wait_for_next(self) -> None:
        """Types the next command and waits until it ends by itself, however long it trains."""
        self.me.longest_s = TRAIN_S
        text = self._ahead.pop(0)
        self.said[text] = self.me.says(self.typed(text))
        print(f"$ {text}\n{self.said[text]}")


def learns(run: Path) -> bool:
    """Returns whether it has taken a step, so that there is something to keep and to look at."""
    metrics = run / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def readme(me: Newcomer) -> None:
    page = Reading(me, "README.md")
    page.follow(until="earl stop")
    run = me.clone / "runs" / "tictactoe"
    me.waits(lambda: learns(run))
    page.follow(until="earl export")
    page.going["earl logs -f --level warning"].ends()
    assert "report.html" in page.said["earl stop"] and (run / "report.html").is_file()
    me.says(f"earl train examples/tictactoe.toml --name small {keys(scheduler__steps='1')}")
    page.follow()
    assert (me.clone / "my-model" / "model.safetensors").is_file()


def quickstart(me: Newcomer) -> None:
    page = Reading(me, "docs/quickstart.md")
    page.follow()
    assert "running" in page.said["earl status"] and "http://127.0.0.1:" in page.said["earl dashboard"]
    assert list((me.here / "runs" / "first" / "logs").iterdir())


def tutorial(me: Newcomer) -> None:
    path = me.clone / "docs/tutorial.md"
    page = Reading(me, "docs/tutorial.md")
    page.follow(until="earl env play")
    (me.here / "walk/__init__.py").write_text(page_block(path, "python"))
    page.follow(until="earl config check")
    run_file = me.here / "run.toml"
    run_file.write_text(edited(edited(run_file.read_text(), page_block(path, "toml")), ENDLESS))
    page.follow(until="earl report")
    assert "running" in page.said["earl status"] and "http://127.0.0.1:" in page.said["earl dashboard"]
    me.waits(lambda: learns(me.here / "runs/first"))
    me.says("earl stop")
    page.follow(until="earl config check walk-llm.toml")
    run_file = me.here / "walk-llm.toml"
    run_file.write_text(edited(run_file.read_text(), page_block(path, "toml", 1)))
    page.follow()
    assert "rollout, tp1" in page.said["earl explain first"]
    assert "512 tasks" in page.said["earl eval first"]
    assert "walk/line, seed 3" in page.said["earl chat first --watch --seed 3"]
    assert (me.here / "walk-model" / "model.safetensors").is_file()


def own_data(me: Newcomer) -> None:
    path = me.clone / "docs/own-data.md"
    page = Reading(me, "docs/own-data.md")
    page.follow(until="python rows.py")
    (me.here / "larger/__init__.py").write_text(page_block(path, "python"))
    (me.here / "rows.py").write_text(page_block(path, "python", 1))
    page.follow(until="earl train")
    page.wait_for_next()
    page.follow()
    first, last = lines_of(me.here / "runs/first/evaluations.jsonl")
    assert last["mean_reward"] > first["mean_reward"]
    samples = lines_of(me.here / "runs/first/samples.jsonl")
    trained = [sample for sample in samples if not sample["evaluation"] and "epoch" in sample]
    assert {sample["epoch"] for sample in trained} > {0, 1}
    held_out = {sample["task"] for sample in samples if sample["evaluation"]}
    assert held_out.isdisjoint(sample["task"] for sample in trained)
    assert (me.here / "larger-model" / "model.safetensors").is_file()


def environments(me: Newcomer) -> None:
    page = Reading(me, "docs/environments.md")
    page.follow(until="earl env serve")
    assert "return" in page.said["earl env play word_guess:WordGuess"]
    assert "resume with: earl resume runs/first" in page.said["earl train run.toml --name first"]
    elsewhere = f"--environment.serve '' --gateway.bind 127.0.0.1:{page.port}"
    me.says(f"earl up run.toml --name elsewhere {elsewhere}")
    page.follow()
    [listed] = [said for text, said in page.said.items() if text.startswith("earl env list")]
    assert "word_guess/guess" in listed and "256" in listed
    me.says("earl stop --now runs/elsewhere")
    [serve] = page.going.values()
    serve.ends(by=signal.SIGINT)


def operating(me: Newcomer) -> None:
    page = Reading(me, "docs/operating.md")
    page.follow()
    said = page.said
    [first] = [text for name, text in said.items() if name.startswith("earl train RUN.toml")]
    assert "resume with: earl resume runs/N" in first
    assert re.search(r"\] train [1-9]", said["earl resume N --foreground"])
    assert "switched from dp2 to tp2" in said["earl parallelism set rollout tp=2 --pin"]
    assert "switched from dp4 to tp2·cp2" in said["earl parallelism set trainer tp=2 cp=2"]
    assert "rollout is not pinned: tp2" in said["earl parallelism unpin rollout"]
    me.says("earl stop --now runs/M")


def looked_at(me: Newcomer) -> None:
    """Pages about one run: metrics, trace, figures, the web page."""
    me.says(f"earl up examples/tictactoe.toml --name demo-seed0 {keys()}")
    me.waits(lambda: learns(me.clone / "runs" / "demo-seed0"))
    for name in ("docs/observability.md", "docs/dashboard.md"):
        page = Reading(me, name)
        page.follow()
        if name == "docs/observability.md":
            assert any("earl_scheduler_step" in said for said in page.said.values())
            [sink, board] = page.going.values()
            assert '"points"' in sink.ends(by=signal.SIGINT)
            board.ends(0, 130, -signal.SIGTERM, by=signal.SIGTERM)
            assert json.loads((me.clone / "deploy/prometheus/endpoints/demo-seed0.json").read_text())
        else:
            [served] = page.going.values()
            served.ends(0, 130, -signal.SIGINT, by=signal.SIGINT)
    me.says("earl stop --now runs/demo-seed0")


def security(me: Newcomer) -> None:
    page = Reading(me, "docs/security.md")
    page.follow(until=VIEWED)
    assert "earl_environment_" in page.said["earl tokens show environment"]
    served = "EARL_TLS_CERT=$PWD/tls/server.pem EARL_TLS_KEY=$PWD/tls/server.key EARL_TLS_CA=$PWD/tls/ca.pem"
    began = json.loads(me.says(f"{served} earl up examples/tictactoe.toml --json {keys()}").splitlines()[-1])
    page.port = int(began["addresses"]["scheduler"].rpartition(":")[2])
    page.follow()
    me.says("export EARL_TLS_CA=$PWD/tls/ca.pem")
    assert "running" in me.says("earl status")
    assert "no token was sent" in me.says("EARL_TOKENS= earl parallelism --run runs/tictactoe", code=18)
    me.says("earl parallelism pin rollout")
    me.says("earl stop --now")
    audited = [json.loads(line) for line in (me.clone / "runs/tictactoe/audit.jsonl").open()]
    shown = json.loads(page_block(me.clone / "docs/security.md", "json"))
    assert any(one["what"].endswith("/SetParallelism") and one.keys() == shown.keys() for one in audited)


def selector(me: Newcomer) -> None:
    page = Reading(me, "docs/selector.md")
    page.follow()
    [said] = page.said.values()
    quoted = (me.clone / "docs/selector.md").read_text().partition("\n> ")[2].partition("\n")[0]
    assert quoted in said and (me.clone / "replay.png").is_file()


def reparallelize(me: Newcomer) -> None:
    for name, seed in (("N", 0), ("growing-context", 1), ("growing-static", 2)):
        (me.clone / "runs" / name).mkdir(parents=True)
        recorded(me.clone / "runs" / name, steps=42, seed=seed)
    page = Reading(me, "docs/reparallelize.md")
    page.follow()
    assert "step 41" in page.said["earl explain runs/N --step 41"]
    assert (me.clone / "compare.html").is_file()


def completion(me: Newcomer) -> None:
    Reading(me, "docs/cli.md").follow()
    assert "earl" in (Path(me.environment["HOME"]) / ".bashrc").read_text()


# Pages, and who follows them.
SCENARIOS: Mapping[tuple[str, ...], Callable[[Newcomer], None]] = {
    ("README.md",): readme,
    ("docs/quickstart.md",): quickstart,
    ("docs/tutorial.md",): tutorial,
    ("docs/own-data.md",): own_data,
    ("docs/environments.md",): environments,
    ("docs/operating.md",): operating,
    ("docs/observability.md", "docs/dashboard.md"): looked_at,
    ("docs/security.md",): security,
    ("docs/selector.md",): selector,
    ("docs/reparallelize.md",): reparallelize,
    ("docs/cli.md",): completion,
}


def page_block(path: Path, language: str, number: int = 0) -> str:
    """A block of the page, counted among those of this language."""
    return path.read_text().split(f"```{language}\n")[number + 1].partition("```")[0]


def edited(run_file: str, changes: str) -> str:
    """The run file with the keys that a page says to change, each in its section."""
    for section, values in re.findall(r"^\[([\w.]+)\]\n(.*?)(?=^\[[\w.]+\]$|\Z)", changes, re.M | re.S):
        for line, key in re.findall(r"^((\w+) = (?:\[\n.*?^\]|[^\n]*))", values, re.M | re.S):
            there = rf"(^\[{re.escape(section)}\][^\n]*\n(?:(?!\[\w).*\n)*?){key} = (?:\[\n(?s:.*?)^\]|.*)"
            run_file, count = re.subn(
                there, lambda match, line=line: match[1] + line, run_file, count=1, flags=re.M
            )
            assert count == 1, f"the run file has no {section}.{key}"
    return run_file


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pages", SCENARIOS, ids=" ".join)
def test_every_command_of_a_page_does_what_it_says(pages: tuple[str, ...], tmp_path: Path) -> None:
    with newcomer(tmp_path) as me:
        if not any(command.text == ACTIVATE for command in commands(pages[0])):
            me.says(ACTIVATE)
        SCENARIOS[pages](me)
