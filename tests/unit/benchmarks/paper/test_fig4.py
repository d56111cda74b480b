"""Fig. 4's arithmetic: limits of the links, the worst size, the rate that the cores carry."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.dispatch.fleet import ExchangeRound
from benchmarks.network.links import Link
from benchmarks.paper import fig4
from benchmarks.paper.settings import PaperSettings
from earl.errors import ConfigError


def test_figures_are_medians_over_the_limits_of_the_links() -> None:
    taken = {
        "direct": [ExchangeRound(seconds, 0.5) for seconds in (1.0, 8.0, 1.25)],
        "central": [ExchangeRound(seconds, 0.25) for seconds in (15.0, 16.0, 15.5)],
    }
    figures = fig4.figures_of(16, 16 * 10**6, Link(0.12), taken)
    assert (figures["direct_s"], figures["central_s"], figures["speedup"]) == (1.25, 15.5, 12.4)
    assert (figures["direct_limit_s"], figures["central_limit_s"]) == (1.0, 15.0)
    assert figures["direct_of_limit"] == 0.8
    assert figures["direct_rounds_s"] == [1.0, 8.0, 1.25]
    assert "speedup" not in fig4.figures_of(16, 1000, Link(0.12), {"direct": taken["direct"]})


def rate(gbps: float, of_limit: float) -> dict[str, Any]:
    return {"gbps": gbps, "direct_of_limit": of_limit}


def test_the_worst_size_decides_and_the_first_rate_that_is_not_carried_is_named() -> None:
    sizes = [
        {"mib": 46.0, "speedup": 12.0, "direct_of_limit": 0.95},
        {"mib": 187.0, "speedup": 13.0, "direct_of_limit": 0.92},
    ]
    summed = fig4.summary(16, sizes, [rate(0.25, 0.95), rate(0.5, 0.91), rate(1.0, 0.6)])
    assert (summed["dispatch_speedup"], summed["direct_of_limit"], summed["limit"]) == (12.0, 0.92, 15)
    assert (summed["carried_gbps"], summed["not_carried_gbps"]) == (0.5, 1.0)
    assert [size["paper_speedup"] for size in summed["sizes"]] == [9.8, 11.2]
    nothing = fig4.summary(16, sizes, [rate(0.25, 0.5)])
    assert (nothing["carried_gbps"], nothing["not_carried_gbps"]) == (None, 0.25)
    assert fig4.summary(16, sizes, [rate(0.25, 0.9)])["not_carried_gbps"] is None


def test_goals_are_for_the_papers_sizes_on_sixteen_hosts() -> None:
    assert fig4.figure(PaperSettings()).goals == {"dispatch_speedup": 11.2, "direct_of_limit": 0.9}
    for smaller in (
        PaperSettings(hosts=8),
        PaperSettings(gbps=0.1),
        PaperSettings(rounds=1),
        PaperSettings(sizes_mib=(46.0,)),
    ):
        assert fig4.figure(smaller).goals == {}


@pytest.mark.parametrize("settings", [PaperSettings(hosts=6), PaperSettings(sizes_mib=(0.01,))])
def test_hosts_and_sizes_that_cannot_be_split_are_refused(settings: PaperSettings) -> None:
    with pytest.raises(ConfigError):
        fig4.figure(settings)
