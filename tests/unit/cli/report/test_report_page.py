"""The report of a recorded run: well formed, every text escaped, and nothing drawn that was not measured."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from earl.cli.lib.decisions import changes, read_decisions
from earl.cli.report.conversations import CHOICES, conversations
from earl.cli.report.data import heard, judged, read_run, surviving
from earl.cli.report.heatmap import columns, heat_map, length_ticks
from earl.cli.report.page import write_report
from earl.errors import ConfigError
from earl.obs.metrics import read_lines
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.state.switch_records import By, SwitchRecord
from tests.support.recorded import recorded

VOID = {"meta", "input", "br", "link", "img"}
EVIL = "</div><script>alert(1)</script><img src=x onerror=alert(2)>&amp; \"quoted\" 'single' \x1b[31m\u202e"


class Reader(HTMLParser):
    """Fails on a tag that is closed out of order; keeps every tag and the text between."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)

    @classmethod
    def of(cls, text: str) -> Reader:
        reader = cls()
        reader.feed(text)
        reader.close()
        assert reader.open == []
        return reader


def test_a_recorded_run_becomes_a_whole_page(tmp_path: Path):
    recorded(tmp_path)
    text = write_report(tmp_path).read_text()
    page = Reader.of(text)
    shown = " ".join("".join(page.text).split())
    for words in (
        "Gain over the first evaluation", "on the same 64 tasks", "Wilson's score interval", "Episode length",
        "Staleness", "Mismatch of trainer and engine", "What was said", "before and after", "15 (best)",
        "12 + 30 = ?", "this run has no reference policy", "step 7 · version 9 · 40 tokens · ended ok",
    ):  # fmt: skip
        assert words in shown, words
    assert "nothing was recorded" not in shown
    names = [dict(attributes).get("class") for _, attributes in page.tags]
    assert names.count("line bar c2") == 2 + 2 + 1  # win rate, reward, gain
    assert {"h8", "line mean"} <= set(names)
    assert "Reference log-probs" not in shown
    for forbidden in ("http://", "https://", "<script", "<link", "@import", "url("):
        assert forbidden not in text


def test_whatever_a_model_or_an_environment_says_stays_text(tmp_path: Path):
    recorded(tmp_path, text=EVIL)
    lines = (tmp_path / "samples.jsonl").read_text().replace('"assistant"', '"<b>role"')
    (tmp_path / "samples.jsonl").write_text(lines)
    page = Reader.of(write_report(tmp_path).read_text())
    tags = [tag for tag, _ in page.tags]
    assert "script" not in tags and "img" not in tags
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    said = "".join(page.text)
    assert EVIL.replace("\x1b", "␛") in said and "<b>role" in said


def test_every_choice_has_one_button_one_label_and_its_conversations(tmp_path: Path):
    recorded(tmp_path, steps=100)
    page = Reader.of(write_report(tmp_path).read_text())
    buttons = [attributes["id"] for tag, attributes in page.tags if tag == "input"]
    labels = [attributes["for"] for tag, attributes in page.tags if tag == "label"]
    groups = [attributes.get("class", "") for tag, attributes in page.tags if tag == "div"]
    assert len(buttons) == CHOICES and buttons == labels
    assert [f"at {name}" for name in buttons] == [name for name in groups if name and name.startswith("at ")]
    assert sum("checked" in attributes for tag, attributes in page.tags if tag == "input") == 1
    assert f"{CHOICES} of 103 choices" in "".join(page.text)


def test_what_was_not_measured_is_said_and_not_drawn(tmp_path: Path):
    recorded(tmp_path)
    for name in ("samples.jsonl", "evaluations.jsonl"):
        (tmp_path / name).unlink()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["length_histogram"]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = write_report(tmp_path).read_text()
    shown = "".join(Reader.of(text).text)
    assert "No conversation was recorded" in shown and "no evaluation has been finished" in shown
    assert "played of late" in shown and 'class="line bar' not in text and 'class="h8"' not in text


def test_the_reference_is_drawn_where_there_is_one(tmp_path: Path):
    recorded(tmp_path, overrides=[("trainer.kl_coefficient", "0.01")])
    text = write_report(tmp_path).read_text()
    assert "<h2>KL to the reference</h2>" in text and "Not measured" not in text
    assert "<h2>Reference log-probs</h2>" in text


def test_layouts_are_bands_under_the_lengths_and_changes_are_marked(tmp_path: Path):
    recorded(tmp_path, steps=20)
    page = Reader.of(write_report(tmp_path).read_text())
    classes = [attributes.get("class") or "" for _, attributes in page.tags]
    lines = read_decisions(tmp_path)["rollout"]
    changed = changes(lines)
    assert len(changed) >= 1
    tints = [name.removeprefix("band ") for name in classes if name.startswith("band ")]
    # A stretch of steps with one verdict is one band; what ran is one strip in the colour of its layout.
    assert len(tints) == len(changed) + 1 and len(set(tints)) == 2
    [strip] = [name.removeprefix("floor ") for name in classes if name.startswith("floor ")]
    assert strip == tints[0]
    assert classes.count("mark") == classes.count("handle") == len(changed)
    shown = " ".join("".join(page.text).split())
    assert "Parallelism of rollout" in shown and f"The verdict changed {len(changed)} time" in shown
    for line in changed:
        assert f"step {line.step}: {line.verdict.reason}" in shown
    assert f"step {changed[0].step} goes to tp2: lengths decide" in shown


def test_switches_are_listed_and_drawn(tmp_path: Path):
    recorded(tmp_path)
    before, after = (2, 1, 1, 1), (1, 2, 1, 1)
    report = RunReport(tmp_path)
    times = [int(line["end_ns"]) for line in read_lines(tmp_path / "timeline.jsonl")]
    one = SwitchRecord(
        epoch=1, before=before, after=after, by=By.SELECTOR, reason=EVIL, stall_s=0.25, seconds=0.5
    )
    report.switched("rollout", one, times[-1])
    other = SwitchRecord(
        epoch=2, before=after, after=before, by=By.OPERATOR, rolled_back=True, message="no room"
    )
    report.switched("rollout", other, times[-1])
    report.close()
    text = write_report(tmp_path).read_text()
    shown = " ".join("".join(Reader.of(text).text).split())
    assert EVIL not in text and "Switches of parallelism" in shown
    assert "dp2 → tp2" in shown and "0.25 s" in shown and "rolled back: no room" in shown
    assert "rollout switches" in shown and "stall: " in shown


def test_a_run_without_decisions_says_why(tmp_path: Path):
    recorded(tmp_path)
    (tmp_path / "decisions.jsonl").unlink()
    assert "there was no profile to decide by" in write_report(tmp_path).read_text()
    recorded(tmp_path, overrides=[("scheduler.selector", "static")])
    (tmp_path / "decisions.jsonl").unlink()
    page = Reader.of(write_report(tmp_path).read_text())
    assert 'nothing was decided (scheduler.selector = "static")' in "".join(page.text)


def test_a_reason_stays_text_and_many_changes_are_not_all_listed(tmp_path: Path):
    recorded(tmp_path)
    *_, last = (json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines())
    cuts = [{"dp": 2, "tp": 1, "cp": 1, "pp": 1}, {"dp": 1, "tp": 2, "cp": 1, "pp": 1}]
    with (tmp_path / "decisions.jsonl").open("w") as file:
        for step in range(2, 32):
            verdict = {
                **last["verdict"], "before": cuts[step % 2], "after": cuts[1 - step % 2], "switched": True,
                "reason": EVIL,
            }  # fmt: skip
            file.write(json.dumps({**last, "step": step, "verdict": verdict}) + "\n")
    page = Reader.of(write_report(tmp_path).read_text())
    assert "script" not in [tag for tag, _ in page.tags] and EVIL in "".join(page.text)
    assert "and 18 before these" in "".join(page.text)


def test_a_run_of_another_version_is_refused(tmp_path: Path):
    recorded(tmp_path)
    config = json.loads((tmp_path / "run.json").read_text())
    config["scheduler"]["was_here_once"] = 1
    (tmp_path / "run.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"scheduler\.was_here_once"):
        read_run(tmp_path)


# --- after a roll-back ----------------------------------------------------------------------


def test_steps_that_were_rolled_back_are_gone_also_those_that_were_not_done_again():
    before = [{"phase": "train", "step": step, "version": step + 1} for step in (1, 2, 3, 4)]
    again = [{"phase": "train", "step": 3, "version": 4, "new": True}]
    assert surviving([*before, *again]) == [*before[:2], *again]
    assert surviving([{"step": 1}, {"step": 2}]) == [{"step": 1}, {"step": 2}]


def test_the_last_evaluation_of_a_name_counts_unless_its_version_is_gone():
    lines = [
        {"name": "start", "version": 1}, {"name": "step-2", "version": 3, "mean_reward": 0.1},
        {"name": "step-2", "version": 3, "mean_reward": 0.2}, {"name": "step-4", "version": 5},
    ]  # fmt: skip
    assert judged(lines, 4) == [lines[0], lines[2]]
    assert judged(lines, None) == [lines[0], lines[2], lines[3]]


def test_conversations_that_were_rolled_back_are_gone():
    def line(step: int, ticket: int, version: int, evaluation: str = "") -> dict[str, object]:
        return {"step": step, "ticket": ticket, "version": [1, version], "evaluation": evaluation, "index": 0}

    lines = [line(0, 1, 1, "start"), line(1, 2, 1), line(2, 3, 2), line(2, 4, 3, "step-2"), line(2, 5, 9)]
    again = [line(2, 6, 2, "step-2"), line(1, 7, 1)]
    kept = heard([*lines, *again], 4)
    assert [one["ticket"] for one in kept] == [1, 2, 7, 6]


# --- pieces ---------------------------------------------------------------------------------


def step(number: int, first: int, counts: list[int], mean: float = 20.0) -> dict[str, object]:
    return {
        "step": number, "length_histogram.first": first, "length_histogram.counts": counts,
        "length_histogram.per_octave": 4, "length_mean": mean,
    }  # fmt: skip


def test_many_steps_share_columns_and_lose_nothing():
    found, per_octave = columns([step(number, 16, [1, 0, 3]) for number in range(1, 1001)])
    assert per_octave == 4 and len(found) <= 96
    assert sum(column.total for column in found) == 4000 and found[-1].last == 1000
    assert all(set(column.counts) == {16, 18} for column in found)
    assert columns([{"step": 1}]) == ([], 0)


def test_a_heat_map_of_one_length_and_one_step_is_drawn():
    found, per_octave = columns([step(1, 19, [64], mean=28.0)])
    svg = heat_map(found, per_octave, x_label="a < b")
    Reader.of(svg)
    assert "step 1: 64 trajectories of 27 to 31 tokens, mean 28" in svg and "a &lt; b" in svg
    assert "NaN" not in svg and "nan" not in svg
    numbers = [float(one) for one in re.findall(r'(?:x|y|width|height)="(-?[\d.]+)"', svg)]
    assert min(numbers) >= 0


def test_lengths_are_marked_at_powers_of_two():
    assert length_ticks(10, 300) == [16, 32, 64, 128, 256]
    assert all(17 <= tick <= 30 for tick in length_ticks(17, 30))


def test_no_samples_are_said():
    body, rules = conversations([])
    assert "No conversation" in body and rules == ""
