"""The figures of a heartbeat: what they sum over the engines."""

from __future__ import annotations

from earl.obs.exposition import exposition
from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.contract.engine import BusyPeriod
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.pool.host_copy import CopyReads
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.gauges import Gauges, WorkerLoad
from services.rollout.worker.metrics import copy_samples, draft_samples
from tests.support.pool import published, running, until
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


async def test_each_of_several_engines_has_an_activity_of_its_own():
    async with running(engines=2) as (pool, made, _):
        spans, sessions = BusySpans(), Sessions()
        gauges = Gauges(pool, EpisodeAgent(pool, sessions, spans, {}), spans)

        async def told() -> list[tuple[str, int, int]]:
            await gauges.refresh(timeout_s=5.0)
            return [(span.what, span.start_ns, span.end_ns) for span in gauges.take_spans(9 * SECOND)]

        made[0].busy = [BusyPeriod("generate", 0, 2 * SECOND)]
        assert await told() == [("generate", 0, 2 * SECOND)], "no other has generated yet"
        made[0].busy = [BusyPeriod("generate", 2 * SECOND, 4 * SECOND)]
        made[1].busy = [BusyPeriod("generate", 3 * SECOND, 7 * SECOND)]
        assert await told() == [
            ("generate", 2 * SECOND, 7 * SECOND),
            ("engine 0", 2 * SECOND, 4 * SECOND),
            ("engine 1", 3 * SECOND, 7 * SECOND),
        ]
        made[0].busy, made[1].busy = [], [BusyPeriod("load", 7 * SECOND, 8 * SECOND)]
        assert await told() == [("load", 7 * SECOND, 8 * SECOND)]
        await gauges.close()


async def test_drafts_are_summed_over_engines_and_over_their_restarts():
    async with running(engines=2) as (pool, made, _):
        await pool.load(published(1))
        spans, sessions = BusySpans(), Sessions()
        gauges = Gauges(pool, EpisodeAgent(pool, sessions, spans, {}), spans)

        async def told() -> dict[str, float]:
            await gauges.refresh(timeout_s=5.0)
            values = gauges.values(WorkerLoad(0, 0, 0.0, False), 0.0)
            return {name: value for name, value in values.items() if "draft" in name or "accepted" in name}

        assert await told() == {}, "engines that do not draft have no such figures"
        made[0].drafts = DraftCounts(10, 14, {"task": 6}, {"task": 4})
        made[1].drafts = DraftCounts(5, 6, {"task": 1, "context": 2}, {"task": 1, "context": 0})
        expected = {
            "drafting_steps": 15.0, "drafting_tokens": 20.0, "drafted_tokens": 9.0, "accepted_tokens": 5.0,
            "drafts.task.drafted_tokens": 7.0, "drafts.task.accepted_tokens": 5.0,
            "drafts.environment.drafted_tokens": 0.0, "drafts.environment.accepted_tokens": 0.0,
            "drafts.context.drafted_tokens": 2.0, "drafts.context.accepted_tokens": 0.0,
        }  # fmt: skip
        assert await told() == expected
        # An engine reports what it has counted since it was asked before, one in place of another from 0.
        made[0].drafts = made[1].drafts = DraftCounts()
        assert await told() == expected
        made[0].gone.set()
        await until(lambda: pool.live == 2 and len(made) == 3)
        made[2].drafts = DraftCounts(1, 2, {"environment": 1}, {"environment": 1})
        again = await told()
        assert again["drafted_tokens"] == 10.0 and again["drafts.task.drafted_tokens"] == 7.0
        assert again["drafts.environment.accepted_tokens"] == 1.0 and again["drafting_tokens"] == 22.0
        await gauges.close()

        samples = {(one.name, *one.labels.values()): one.value for one in draft_samples(again)}
        assert samples["earl_rollout_drafted_tokens_total",] == 10.0
        assert samples["earl_rollout_drafting_steps_total",] == 16.0
        assert samples["earl_rollout_source_drafted_tokens_total", "task"] == 7.0
        assert samples["earl_rollout_source_accepted_tokens_total", "environment"] == 1.0
        exposition(draft_samples(again))
    assert list(draft_samples({"running_episodes": 1.0})) == []


def test_versions_that_were_copied_are_counted_by_form():
    samples = list(copy_samples(CopyReads(2, 5, 1, 2000, 90)))
    assert [(each.value, *each.labels.values()) for each in samples] == [
        (2.0, "whole"),
        (2000.0, "whole"),
        (5.0, "changes"),
        (90.0, "changes"),
        (1.0,),
    ]
    exposition(samples)
