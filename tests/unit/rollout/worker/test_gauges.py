"""The figures of a heartbeat: what they sum over the engines."""

from __future__ import annotations

from services.rollout.engines.contract.engine import BusyPeriod
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.gauges import Gauges, WorkerLoad
from tests.support.pool import running
from tests.unit.rollout.worker.test_agent import Sessions

SECOND = 1_000_000_000


async def test_device_seconds_are_summed_while_engines_generate():
    async with running(engines=2) as (pool, made, _):
        spans, sessions = BusySpans(), Sessions()
        gauges = Gauges(pool, EpisodeAgent(pool, sessions, spans, {}), spans)

        async def told() -> float | None:
            await gauges.refresh(timeout_s=5.0)
            return gauges.values(WorkerLoad(0, 0, 0.0, False), 0.0).get("busy_device_s")

        assert await told() is None, "no engine has told yet"
        made[0].busy = [BusyPeriod("generate", 0, SECOND), BusyPeriod("load", SECOND, 9 * SECOND)]
        made[1].busy = [BusyPeriod("generate", SECOND, 3 * SECOND)]
        tp = made[0].spec.tp
        assert await told() == tp * 3.0
        made[0].busy = [BusyPeriod("generate", 9 * SECOND, 10 * SECOND)]
        made[1].busy = []
        assert await told() == tp * 4.0
        await gauges.close()
