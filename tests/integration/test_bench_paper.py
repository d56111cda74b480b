"""`earl bench paper` makes Fig. 4 over links of the rig: what hosts exchange crosses them."""

from __future__ import annotations

import pytest

from benchmarks.network.rig import RigUnavailable
from benchmarks.paper import fig4
from benchmarks.paper.settings import PaperSettings
from tests.support.needs import lacking

MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_both_ways_cross_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two hosts has half of what the other wants; a controller on one of them changes nothing."""
    monkeypatch.setattr(fig4, "DOUBLINGS", 1)
    try:
        made = await fig4.measure(PaperSettings(hosts=2, gbps=1.0, sizes_mib=(2.0,), rounds=1))
    except RigUnavailable as error:
        lacking(str(error))
    (size,) = made["sizes"]
    for way in ("direct", "central"):
        assert MIB < size[f"{way}_busiest_link_bytes"] < 1.2 * MIB
    assert made["rates"][0]["gbps"] == 1.0
