"""Pictures of the paper's figures: every value is drawn, every text can be read, no matter the result."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dispatch.fleet import ExchangeRound
from benchmarks.dispatch.pattern import MIB
from benchmarks.growing_context import EXAMPLE
from benchmarks.network.links import Link
from benchmarks.paper import fig1, fig3, fig4, memory70b
from benchmarks.paper.figure import PaperFigure
from benchmarks.paper.settings import FIG4_MIB, PaperSettings
from earl.cli.report.data import RecordedRun
from earl.config.load import load_run
from tests.support.drawings import Drawing, points_of
from tools import paper_fig1_picture, paper_pictures
from tools.chart import COLOURS, TEXT, bytes_text, tokens_text
from tools.paper_fig1_picture import ARMS
from tools.paper_pictures import PICTURES, draw, percent_text, seconds_text
from tools.results import RESULTS, record

Result = dict[str, Any]
SAVED = ("paper-table1", "paper-fig3", "paper-memory70b")


def saved(benchmark: str) -> Result:
    return dict(record().series(benchmark)[-1].figures)


def as_read(figure: PaperFigure, values: Mapping[str, Any]) -> Result:
    """The figure as its saved result is read, of values that its own code summed up."""
    made = PaperFigure(figure.name, figure.settings, lambda: dict(values), figure.goals).made()
    return json.loads(json.dumps({"benchmark": figure.result_name, **made}))


def a_fig4(
    hosts: int = 16, gbps: float = 0.25, sizes: tuple[float, ...] = FIG4_MIB, rounds: int = 3
) -> Result:
    """A result of Fig. 4, of rounds that took a little longer than their links allow."""
    settings = PaperSettings(hosts, gbps, sizes, rounds)
    link = Link(gbps)

    def taken(way: str, mib: float, of: Link) -> list[ExchangeRound]:
        limit_s = fig4.LIMITS[way](hosts, int(mib * MIB), of.bytes_per_s)
        return [ExchangeRound(limit_s * (1.04 + 0.02 * number), 0.3) for number in range(rounds)]

    def figures(mib: float, of: Link, *ways: str) -> dict[str, Any]:
        return fig4.figures_of(hosts, int(mib * MIB), of, {way: taken(way, mib, of) for way in ways})

    sizes_made = [{"mib": mib, **figures(mib, link, *fig4.WAYS)} for mib in sizes]
    rates = [
        {"gbps": gbps * 2**doubling, **figures(min(sizes), Link(gbps * 2**doubling), "direct")}
        for doubling in range(4)
    ]
    return as_read(fig4.figure(settings), fig4.summary(hosts, sizes_made, rates))


def a_run(arm: str, seed: int, steps: int) -> Result:
    """A run of Fig. 1 whose episodes double in length, of records as the scheduler writes them."""
    grown = [8.0 * 2 ** (4 * step / max(steps, 1)) + seed for step in range(steps)]
    metrics = [
        {
            "phase": "train", "step": step, "time_s": 2.0 * step, "length_mean": 12.0 * turns,
            "turns_mean": turns, "reward_mean": turns / 160, "win_rate": turns / 160,
            "truncated_episodes": 16.0 * seed, "sequences": 128.0,
        }
        for step, turns in enumerate(grown, 1)
    ]  # fmt: skip
    arms: tuple[str, ...] = fig1.ARMS
    score = 0.9 - 0.2 * arms.index(arm) + 0.01 * seed
    result = {"complete": True, "win_rate": score, "win_low": score - 0.02, "win_high": score + 0.02}
    recorded = RecordedRun(Path(), load_run(EXAMPLE, []), metrics, [], {}, result if steps else {})
    return {"seed": seed, "arm": arm, "wall_s": 10.0, **fig1.figures_of(recorded)}


def a_fig1(steps: int = 12) -> Result:
    limit = 200
    runs = [a_run(arm, seed, steps) for seed in fig1.SEEDS for arm in fig1.ARMS]
    values = {"limit_tokens": limit, **fig1.summary(runs, limit), "runs": runs}
    return as_read(fig1.figure(PaperSettings()), values)


def short_fig1(steps: int = 2) -> Result:
    """Fig. 1 whose runs have few steps."""
    result = a_fig1()
    for run in result["runs"]:
        run["curves"] = {name: values[:steps] for name, values in run["curves"].items()}
    return result


def differing_fig3() -> Result:
    """Fig. 3 with a cell that is not the paper's."""
    result = json.loads(json.dumps(saved("paper-fig3")))
    result["cells"][0] |= {"percent": 4.2, "as_in_paper": False}
    result["cells"][1] |= {"percent": None, "as_in_paper": False}
    return result


@cache
def results() -> dict[str, Result]:
    return {
        **{name: saved(name) for name in SAVED},
        "paper-fig4": a_fig4(),
        "fig4, one size": a_fig4(hosts=4, gbps=1.0, sizes=(8.0,), rounds=1),
        "paper-fig1": a_fig1(),
        "fig1, short": short_fig1(),
        "fig3, another ratio": differing_fig3(),
    }


CASES = (*PICTURES, "fig4, one size", "fig1, short", "fig3, another ratio")


@pytest.mark.parametrize("case", CASES)
def test_every_text_is_legible(case: str):
    svg = draw(results()[case]).svg()
    drawing = Drawing.parsed(svg)
    assert drawing.smallest_text >= TEXT
    assert [box.text for box in drawing.texts if not box.within(drawing.frame)] == []
    assert drawing.collisions() == []
    assert drawing.root.find("{*}title") is not None and drawing.root.find("{*}desc") is not None
    assert draw(json.loads(json.dumps(results()[case]))).svg() == svg


@pytest.mark.parametrize("case", CASES)
def test_every_mark_is_in_the_frame_and_nothing_is_fetched(case: str):
    svg = draw(results()[case]).svg()
    drawing = Drawing.parsed(svg)
    frame = drawing.frame
    outside = [(x, y) for x, y in drawing.points() if not (0 < x < frame.right and 0 < y < frame.bottom)]
    assert outside == []
    assert svg.count("://") == 1 and 'xmlns="http://www.w3.org/2000/svg"' in svg


def test_table1_draws_every_batch_and_the_papers_estimate():
    result = saved("paper-table1")
    drawing = Drawing.parsed(draw(result).svg())
    ours = {
        f"{row['workers']} worker{'s' * (row['workers'] > 1)}, {tokens_text(row['context_tokens'])}: "
        f"{bytes_text(row['arena_bytes'])}": row["arena_bytes"]
        for row in result["rows"]
    }
    paper = {
        f"paper, {tokens_text(row['context_tokens'])}: {row['paper_gib']:.3g} GiB": row["paper_gib"] * 2**30
        for row in result["contexts"]
    }
    dots = drawing.marks("circle")
    assert dots.keys() == (ours | paper).keys() and len(ours) == len(result["rows"]) == 30
    # The larger, the higher.
    values = ours | paper
    heights = [float(dots[title].attrib["cy"]) for title in sorted(values, key=lambda title: values[title])]
    assert heights == sorted(heights, reverse=True)
    assert "16 workers, 68 MiB" in drawing.words and "paper, 499 GiB:" in drawing.words


def test_fig3_has_a_cell_for_each_context_and_load_and_says_where_memory_ends():
    result = saved("paper-fig3")
    drawing = Drawing.parsed(draw(result).svg())
    expected = {
        f"{tokens_text(cell['context_tokens'])}, {cell['responses']} responses: "
        f"{percent_text(cell['percent'])}"
        for cell in result["cells"]
    }
    cells = drawing.marks("rect")
    assert cells.keys() == expected and len(cells) == 30
    values = [percent_text(cell["percent"]) for cell in result["cells"]]
    assert sorted(text for text in drawing.words if text in values) == sorted(values)
    assert values.count("OOM") == 1 and "OOM: TP4 is out of memory" in drawing.words
    styles = {cells[title].attrib["class"] for title in expected if ": −" in title}
    assert styles == {"orange"}
    assert {cells[title].attrib["class"] for title in expected if ": +" in title} == {"blue"}


def test_fig3_shows_the_papers_ratio_where_the_profile_gives_another():
    words = Drawing.parsed(draw(differing_fig3()).svg()).words
    first, second = (cell["paper_percent"] for cell in differing_fig3()["cells"][:2])
    assert "+4.2" in words and f"({percent_text(first)})" in words and f"({percent_text(second)})" in words


def test_memory70b_draws_every_layout():
    result = saved("paper-memory70b")
    drawing = Drawing.parsed(draw(result).svg())
    rollout = {
        f"TP{row['tp']}, {row['responses']} responses: {tokens_text(row['longest_tokens'])}"
        for row in result["rollout"]
    }
    assert drawing.marks("circle").keys() == rollout and len(rollout) == 15
    assert len(drawing.marks("rect")) == len(result["trainer"]) == 6
    for row in result["trainer"]:
        assert f"{row['fraction_at_32768']:.0%}".replace("%", " %") in drawing.words
    for row in [*result["rollout"], *result["trainer"]]:
        assert tokens_text(row["longest_tokens"]) in drawing.words


def test_memory70b_leaves_out_what_holds_nothing():
    result = json.loads(json.dumps(saved("paper-memory70b")))
    for row in result["rollout"]:
        row["longest_tokens"] *= row["tp"] > 2
    drawing = Drawing.parsed(draw(result).svg())
    assert "TP2" not in drawing.words and len(drawing.marks("circle")) == 10


def fig4_titles(result: Result) -> Iterator[str]:
    for size in result["sizes"]:
        for way, (name, _) in paper_pictures.WAYS.items():
            yield f"{size['mib']:.0f} MiB, {name}: {seconds_text(size[f'{way}_s'])}"
            for number, seconds in enumerate(size[f"{way}_rounds_s"], 1):
                yield f"{size['mib']:.0f} MiB, {name}, round {number}: {seconds_text(seconds)}"
    for rate in result["rates"]:
        yield f"{rate['gbps']:g} Gbit/s: {rate['direct_of_limit']:.0%}".replace("%", " %")


def test_fig4_draws_both_ways_every_round_and_every_rate():
    result = a_fig4()
    drawing = Drawing.parsed(draw(result).svg())
    assert sorted(drawing.marks("circle")) == sorted(fig4_titles(result))
    for size in result["sizes"]:
        assert (
            f"{size['speedup']:.1f} times as fast, in the paper {size['paper_speedup']:.1f}" in drawing.words
        )
    dots = drawing.marks("circle")
    ends = [float(dots[title].attrib["cx"]) for title in dots if "directly: " in title]
    assert ends == sorted(ends)
    assert (
        f"{a_fig4(hosts=4, gbps=1.0, sizes=(8.0,), rounds=1)['sizes'][0]['speedup']:.1f} times as fast"
        in (Drawing.parsed(draw(results()["fig4, one size"]).svg()).words)
    )


def test_fig1_draws_every_arm_and_seed_with_its_steps_and_score():
    result = a_fig1(steps=12)
    drawing = Drawing.parsed(draw(result).svg())
    lines = drawing.marks("polyline")
    keys = ("turns_mean", "length_mean", "truncated", "success")
    names = {arm: name for arm, (name, *_) in ARMS.items()}
    assert names.keys() == set(fig1.ARMS)
    seeds = {f"{names[run['arm']]}, seed {run['seed']}: {key}" for run in result["runs"] for key in keys}
    means = {f"{name}, mean: {key}" for name in names.values() for key in keys}
    assert lines.keys() == seeds | means and len(seeds) == 9 * len(keys)
    assert {len(points_of(line)) for line in lines.values()} == {12}
    scores = {f"{names[run['arm']]}, seed {run['seed']}: score {run['score']:.2f}" for run in result["runs"]}
    assert drawing.marks("circle").keys() == scores and "0.90–0.92" in drawing.words
    heights = [[y for _, y in points_of(lines[f"EARL, seed {seed}: success"])] for seed in fig1.SEEDS]
    means = [statistics.mean(step) for step in zip(*heights, strict=True)]
    for step, (_, y) in enumerate(points_of(lines["EARL, mean: success"]), 1):
        assert y == pytest.approx(statistics.mean(means[max(0, step - fig1.WINDOW) : step]), abs=0.1)


def test_fig1_draws_runs_that_failed_as_far_as_they_went():
    result = a_fig1(steps=6)
    runs = [run for run in result["runs"] if run["arm"] != fig1.LIMIT]
    shorter = [json.loads(json.dumps(a_run(fig1.LIMIT, seed, seed))) for seed in fig1.SEEDS]
    drawing = Drawing.parsed(draw({**result, "runs": [*runs, *shorter]}).svg())
    lines = drawing.marks("polyline")
    assert "limit, seed 0: success" not in lines
    assert [len(points_of(lines[f"limit, {of}: success"])) for of in ("seed 1", "seed 2", "mean")] == [
        1,
        2,
        2,
    ]
    assert drawing.collisions() == []


def test_the_command_draws_a_saved_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (file,) = RESULTS.glob(f"{record().series('paper-fig3')[-1].name}.json")
    out = tmp_path / "fig3.svg"
    monkeypatch.setattr("sys.argv", ["paper_pictures.py", str(file), str(out)])
    paper_pictures.main()
    assert out.read_text() == draw(saved("paper-fig3")).svg()
    (tmp_path / "other.json").write_text('{"benchmark": "newcomer"}')
    monkeypatch.setattr("sys.argv", ["paper_pictures.py", str(tmp_path / "other.json"), str(out)])
    with pytest.raises(SystemExit, match="is none of paper-table1, "):
        paper_pictures.main()


def luminance(colour: str) -> float:
    channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def mixed(colour: str, ground: str, opacity: float) -> str:
    pairs = [(int(colour[index : index + 2], 16), int(ground[index : index + 2], 16)) for index in (1, 3, 5)]
    return "#" + "".join(f"{round(top * opacity + below * (1 - opacity)):02x}" for top, below in pairs)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_legible_on_the_ground_and_letters_on_the_strongest_cell(scheme: int):
    ground, ink = COLOURS["ground"][scheme], COLOURS["ink"][scheme]
    for name in ("ink", "faint", "blue", "orange", "green"):
        assert contrast(COLOURS[name][scheme], ground) >= 4.5, name
    for name in ("blue", "orange"):
        assert contrast(ink, mixed(COLOURS[name][scheme], ground, 0.5)) >= 4.5, name


def test_the_arms_and_tps_of_the_figures_have_a_style():
    assert ARMS.keys() == set(fig1.ARMS) and paper_fig1_picture.WINDOW == fig1.WINDOW
    assert paper_pictures.TP_STYLES.keys() == set(memory70b.TPS)
    assert paper_pictures.WAYS.keys() == set(fig4.WAYS)
    assert fig4.GOALS["direct_of_limit"] == paper_pictures.GOAL_OF_LIMIT
    assert len(fig3.RESPONSES) == 5
