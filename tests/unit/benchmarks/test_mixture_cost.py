"""Checks how a mixture of environments is compared with one environment, in turns."""

from __future__ import annotations

import asyncio

import pytest
import typer

from benchmarks.control.processes import ControlLoad
from benchmarks.gateway.environment import NAME, environments, names
from benchmarks.mixture_cost import in_turns, mixture_figures, parts_to_measure


def test_the_two_take_turns_and_the_ratio_is_that_of_their_medians() -> None:
    order: list[tuple[int, int]] = []

    async def measured(count: int, number: int) -> float:
        order.append((number, count))
        return {1: [100.0, 200.0, 300.0], 8: [190.0, 500.0, 10.0]}[count][number]

    figures = asyncio.run(in_turns(measured, 8, 3))
    assert order == [(0, 1), (0, 8), (1, 8), (1, 1), (2, 1), (2, 8)]
    assert figures["environments"] == 8 and figures["mixture_ratio"] == 0.95
    assert figures["mixture_rounds"] == [
        {"one": 100.0, "several": 190.0},
        {"one": 200.0, "several": 500.0},
        {"one": 300.0, "several": 10.0},
    ]


def test_a_ratio_keeps_what_a_goal_of_95_percent_needs() -> None:
    assert mixture_figures([3.0], [2.8499], 2)["mixture_ratio"] == 0.95
    assert mixture_figures([10_000.0], [9_494.0], 2)["mixture_ratio"] == 0.9494


def test_something_is_measured_or_the_command_is_refused() -> None:
    assert parts_to_measure("most,drill", ("most", "drill"), 1) == ["most", "drill"]
    assert parts_to_measure("", ("most",), 8) == []
    with pytest.raises(typer.BadParameter, match="none: use most, or --environments 8"):
        parts_to_measure("", ("most",), 1)
    with pytest.raises(typer.BadParameter, match="least: use most"):
        parts_to_measure("most,least", ("most",), 8)


def test_a_load_of_several_environments_is_a_mixture_in_equal_shares() -> None:
    load = ControlLoad(workers=4, processes=1, credit=2)
    (alone,) = load.config().mixture
    mixed = ControlLoad(workers=4, processes=1, credit=2, environments=8).config().mixture
    assert len({entry.label for entry in mixed}) == 8
    assert {entry.share for entry in mixed} == {1 / 8} and {entry.group_size for entry in mixed} == {16}
    assert all(entry.section.task == alone.section.task for entry in mixed)


def test_hosts_of_the_gateway_s_benchmark_serve_one_environment_or_several(monkeypatch) -> None:
    assert list(environments()) == [NAME]
    monkeypatch.setenv("EARL_BENCH_ENVIRONMENTS", "8")
    assert list(environments()) == names(8) and len(set(names(8))) == 8 and names(8)[0] == NAME
