"""The report of a recorded run: one file that needs nothing else, whatever the run did not record."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from earl.cli.report import embedded
from earl.cli.report.document import document
from earl.cli.report.page import write_report
from earl.config.load import load_run
from earl.errors import ConfigError
from earl.stack.record import LaunchRecord, write_record
from earl.stack.status import RunStatus
from tests.support.paths import ROOT
from tests.support.recorded import recorded

TICTACTOE = ROOT / "examples" / "tictactoe.toml"
EVIL = "</script><script>alert(1)</script><!--<script><img src=x onerror=alert(2)>&amp; \x1b[31m\u202e"


class Reader(HTMLParser):
    """Elements of a page with their attributes, and the text in each script and style."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            kind = self.tags[-1][1].get("type") or self.tags[-1][0]
            self.inside.append((kind, data))

    @classmethod
    def of(cls, text: str) -> Reader:
        reader = cls()
        reader.feed(text)
        reader.close()
        return reader


def written(directory: Path) -> tuple[Reader, dict[str, Any]]:
    """The report as a browser reads it, and its data."""
    reader = Reader.of(write_report(directory).read_text())
    [data] = [text for kind, text in reader.inside if kind == "application/json"]
    return reader, json.loads(data)


def test_a_recorded_run_is_whole_in_its_file(tmp_path: Path):
    recorded(tmp_path)
    _, data = written(tmp_path)
    sections = data["sections"]
    assert sections["run"]["name"] == "tictactoe" and sections["run"]["best_version"] == 15
    assert sections["run"]["elapsed_s"] == 125.0 and sections["run"]["state"] == "ended"
    assert [one["name"] for one in sections["learning"]["evaluations"]] == ["start", "final"]
    assert len(sections["lengths"]["columns"]) == 12 and sections["decisions"][0]["history"]["changes"]
    assert data["metrics"]["step"] == list(range(1, 13)) and len(data["metrics"]["loss"]) == 12
    assert set(data["answers"]["keys"]["keys"]) <= data["metrics"].keys()
    assert len(data["trajectories"]) == sections["trajectories"]["count"] == 16
    assert "left_out" not in sections["trajectories"]
    assert data["trajectories"][0]["turns"][1]["text"] == "12 + 30 = ?"
    assert data["answers"]["busy"]["rows"] and data["answers"]["config"]["rows"]
    shm = {"size_bytes": 1 << 20, "seconds": 0.001, "transfers": 64, "retries": 1}
    assert {key: sections["moved"][0][key] for key in shm} == shm


def test_what_a_page_holds_is_not_copied():
    run = embedded.EmbeddedRun({"run": {}}, {"keys": {}}, {"loss": [1.0]}, [{"turns": []}])
    data = run.as_json()
    assert data.keys() == {field.name for field in fields(run)}
    assert all(value is getattr(run, name) for name, value in data.items())


def test_only_what_is_in_the_file_may_run(tmp_path: Path):
    recorded(tmp_path)
    reader, _ = written(tmp_path)
    [policy] = [
        str(attributes["content"]) for tag, attributes in reader.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]  # fmt: skip
    rules = {rule.partition(" ")[0]: rule.partition(" ")[2].split() for rule in policy.split("; ")}
    assert rules["default-src"] == ["'none'"] and "unsafe" not in policy and "*" not in policy
    for rule, kinds in (("script-src", ("script", "module")), ("style-src", ("style",))):
        texts = [text for kind, text in reader.inside if kind in kinds]
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert rules[rule] == [f"'sha256-{digest}'" for digest in digests] and texts
    # Before it nothing is loaded, and behind it neither.
    assert [tag for tag, _ in reader.tags][:4] == ["html", "head", "meta", "meta"]
    assert not any(tag in ("link", "img", "iframe", "object") for tag, _ in reader.tags)
    names = {name for _, attributes in reader.tags for name in attributes}
    assert not names & {"src", "style", "srcset"} and not any(name.startswith("on") for name in names)
    targets = [attributes["href"] for tag, attributes in reader.tags if tag == "a"]
    assert all(str(target).startswith("#") for target in targets)


def test_whatever_a_model_or_an_error_says_stays_text(tmp_path: Path):
    recorded(tmp_path)
    harmless, _ = written(tmp_path)
    recorded(tmp_path, text=EVIL)
    (tmp_path / "failure.json").write_text(json.dumps({"error": "EngineLost", "message": EVIL}))
    write_record(tmp_path, LaunchRecord(1, "mark", outcome="failed", status=RunStatus(phase="train")))
    reader, data = written(tmp_path)
    assert [tag for tag, _ in reader.tags] == [tag for tag, _ in harmless.tags]
    text = data["trajectories"][0]["turns"][1]["text"]
    assert text.startswith("</script><script>alert(1)</script><!--<script>") and "\x1b" not in text
    assert EVIL in data["sections"]["run"]["why"]
    written_text = write_report(tmp_path).read_text()
    assert "alert(1)" in written_text and "<script>alert" not in written_text and "<!--" not in written_text


def test_no_secret_is_in_the_file(tmp_path: Path):
    config = load_run(TICTACTOE, [("bus.redis_url", "redis://:secret@127.0.0.1:6379")])
    (tmp_path / "run.json").write_text(config.model_dump_json())
    text = write_report(tmp_path).read_text()
    assert "secret" not in text and "redis_url" not in text


def test_a_run_that_recorded_nothing_is_still_a_page(tmp_path: Path):
    (tmp_path / "run.json").write_text(load_run(TICTACTOE).model_dump_json())
    _, data = written(tmp_path)
    assert data["sections"]["learning"]["evaluations"] == [] and data["trajectories"] == []
    assert [one["title"] for one in data["sections"]["missing"]] == [
        "Gain over the first evaluation", "Parallelism", "KL to the reference",
    ]  # fmt: skip


def test_of_too_many_conversations_both_ends_are_kept_and_the_rest_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recorded(tmp_path, steps=60)
    monkeypatch.setattr(embedded, "TEXT_CHARACTERS", 20_000)
    _, data = written(tmp_path)
    kept = data["trajectories"]
    steps = [one["step"] for one in kept if not one["evaluation"]]
    assert steps[0] == 1 and steps[-1] == 60 and steps == sorted(steps)
    # Of a task that is kept, every evaluation is.
    tasks = [one["index"] for one in kept if one["evaluation"]]
    assert tasks and len(tasks) == 2 * len(set(tasks))
    assert len(json.dumps(kept, separators=(",", ":"))) <= 20_000 < len(json.dumps(kept)) * 3
    said = data["sections"]["trajectories"]["left_out"]
    assert f"{len(kept)} of 64 trajectories" in said
    monkeypatch.setattr(embedded, "TEXT_CHARACTERS", 10)
    assert written(tmp_path)[1]["trajectories"] == []


def test_a_run_of_another_version_is_refused(tmp_path: Path):
    recorded(tmp_path)
    config = json.loads((tmp_path / "run.json").read_text())
    config["scheduler"]["was_here_once"] = 1
    (tmp_path / "run.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"scheduler\.was_here_once"):
        write_report(tmp_path)


def test_a_page_that_lost_a_place_to_fill_is_refused():
    with pytest.raises(ConfigError, match="has no <nothing>"):
        document("index.html", "ended", "x", {}, [("<nothing>", "")])


def test_every_module_of_the_page_that_a_report_needs_is_in_it_once(tmp_path: Path):
    recorded(tmp_path)
    reader, _ = written(tmp_path)
    [script] = [text for kind, text in reader.inside if kind == "module"]
    modules = re.findall(r"^const \$(\w+) = \(\(\) => \{$", script, re.M)
    assert len(modules) == len(set(modules)) and {"chart", "layers", "embedded"} <= set(modules)
    assert modules[-1] == "ended" and not {"feed", "route", "main", "list", "compare"} & set(modules)
