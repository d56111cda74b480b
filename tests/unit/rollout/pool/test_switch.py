"""Switches of a pool whose engines live in this process: order, deadlines, roll-backs, epochs."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from earl.config.scheduler import SwitchDeadlines
from earl.errors import (
    BusUnavailable,
    ContextTooLong,
    DeadlineExceeded,
    EngineError,
    EngineLost,
    IllegalParallelism,
    ReshapeRefused,
    StaleEpoch,
)
from earl.parallelism import Parallelism
from earl.reparallelize import LOGPROB_TOLERANCE, SwitchCommand
from earl.waiting import deadline
from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.contract.engine import BusyPeriod
from services.rollout.pool import pool as pool_module
from services.rollout.pool import switch as switch_module
from services.rollout.pool.parity import PROMPTS
from tests.support.pool import greedy, published, request, running, settle, until

NEW = 200
TWO = Parallelism(1, 2)


def command(epoch=1, parallelism=TWO, logprob_tolerance=LOGPROB_TOLERANCE, **seconds: float) -> SwitchCommand:
    deadlines = dict.fromkeys(SwitchDeadlines.model_fields, 5.0) | seconds
    return SwitchCommand(epoch, parallelism, SwitchDeadlines(**deadlines), logprob_tolerance)


@asynccontextmanager
async def generating(turns=3, **fields):
    """A pool of two engines of tp 1 with weights, and turns that have made some of their NEW tokens."""
    async with running(**fields) as (pool, made, watch):
        made.prepare = lambda engine: engine.answer.set()
        await pool.load(published(1))
        for engine in made:
            engine.answer.set()
        ids = [[number + 1, 5, number + 3] for number in range(turns)]
        tasks = [
            asyncio.create_task(pool.generate(request(f"{n}/1", f"{n}", NEW, ids[n]))) for n in range(turns)
        ]
        await settle()
        yield pool, made, list(zip(ids, tasks, strict=True))
        assert not watch.done()


async def assert_whole(turns) -> None:
    """Every turn ended as if it had never been interrupted."""
    for ids, task in turns:
        generation = await task
        assert (generation.ids, generation.finish) == (greedy(ids, NEW), "length")
        assert generation.logprobs == [-0.01 * token for token in generation.ids]
        assert generation.versions == [1] * NEW and generation.reused_tokens == 0


# --- a switch that succeeds -----------------------------------------------------------------------


async def test_turns_go_on_with_the_new_engines_and_their_kv():
    async with generating() as (pool, made, turns):
        report = await pool.reparallelize(command())
        assert not report.rolled_back and not report.cold, report.message
        assert (report.epoch, report.parallelism, report.sequences_continued) == (1, TWO, 3)
        assert (pool.parallelism, pool.epoch, pool.version, pool.live) == (TWO, 1, 1, 1)
        assert [engine.gone.is_set() for engine in made] == [True, True, False]
        assert made[2].spec.tp == 2 and made[2].spec.name == "e/engine-0-epoch-1"
        await assert_whole(turns)
        # All that was computed came along, most of it before turns were interrupted; and the canary.
        assert made[2].calls.count("take_kv") >= 5
        calls = made[0].calls
        assert calls.index("pause") == len(calls) - 5 and calls.count("offer_kv") > 2, calls
        assert report.moved_bytes > 0 and report.kv_recomputed_tokens == 0
        assert made[2].prefilled < 3 * 4 + 4 * 12 + 10
        assert report.max_logprob_difference == 0 and 0 < report.stall_s <= report.seconds
        assert report.logprobs_compared == PROMPTS + 1  # and the canary session
        assert not [name for name in made[2].kv if name.startswith("canary")]


async def test_the_phases_of_a_switch_are_parts_of_it():
    async with generating() as (pool, _, turns):
        report = await pool.reparallelize(command())
        phases = (
            report.start_s, report.weights_s, report.kv_ahead_s, report.interrupt_s, report.kv_rest_s,
            report.resume_s, report.end_s,
        )  # fmt: skip
        # Each is rounded to a tenth of a millisecond.
        assert min(phases) >= 0 and sum(phases) <= report.competing_s + 1e-3 <= report.seconds + 2e-3
        assert report.kv_ahead_s > 0 and report.kv_rounds >= 2
        await assert_whole(turns)


@pytest.mark.parametrize("cold", [False, True])
async def test_what_engines_count_until_they_end_is_added_once(cold: bool, monkeypatch):
    """A switch asks for their memory and whether they have sampled, and ends them; each answer counts."""
    monkeypatch.setattr(pool_module, "fits_with_old", lambda *args: not cold)
    async with generating() as (pool, made, turns):
        made[0].drafts = DraftCounts(10, 14, {"task": 6}, {"task": 4})
        made[0].busy = [BusyPeriod("generate", 0, 1_000_000_000)]
        switch = asyncio.create_task(pool.reparallelize(command()))
        await until(lambda: "pause" in made[1].calls)
        made[1].drafts = DraftCounts(5, 6, {"context": 2}, {"context": 1})
        report = await switch
        assert not report.rolled_back and report.cold == cold
        await pool.stats()
        drafts = pool.counters.drafts
        assert (drafts.steps, drafts.tokens, drafts.drafted_tokens, drafts.accepted_tokens) == (15, 20, 8, 5)
        assert pool.counters.busy_device_s == 1.0
        assert pool.counters.take_busy() == {"generate": [(0, 1_000_000_000)]}
        await assert_whole(turns)


async def test_old_engines_end_once_the_new_ones_have_sampled():
    async with generating() as (pool, made, turns):
        sampled: list[int] = []

        async def note():
            sampled.append(made[2].generated)

        made[0].hooks["stop"] = note
        assert not (await pool.reparallelize(command())).rolled_back
        assert sampled[0] > PROMPTS + 1  # the canaries
        await assert_whole(turns)


async def test_old_engines_do_not_wait_longer_for_the_new_ones_than_their_bound(monkeypatch):
    monkeypatch.setattr(switch_module, "FIRST_S", 0.01)
    async with generating() as (pool, made, turns):
        made.prepare = lambda engine: None
        report = await pool.reparallelize(command())
        assert not report.rolled_back and [engine.gone.is_set() for engine in made] == [True, True, False]
        made[2].answer.set()
        await assert_whole(turns)


async def test_new_engines_compute_a_step_as_large_as_theirs_before_kv_takes_their_places():
    async with generating(turns=5) as (pool, made, turns):
        computed: list[tuple[int, int]] = []

        def prepare(engine):
            engine.answer.set()
            generate = engine.generate_all

            async def noted(request):
                if request.request_id.startswith("canary"):
                    computed.append((len(request.ids), engine.calls.count("take_kv")))
                return await generate(request)

            engine.generate_all = noted

        made.prepare = prepare
        assert not (await pool.reparallelize(command())).rolled_back
        assert (5, 0) in computed
        await assert_whole(turns)


async def test_an_old_engine_scores_again_what_newer_weights_are_compared_with(monkeypatch):
    monkeypatch.setattr(switch_module, "RETRY_S", 0.0)
    async with generating(turns=0) as (pool, made, _):
        made.prepare = lambda engine: engine.vanished.add(1)
        switching = asyncio.create_task(pool.reparallelize(command(logprob_tolerance=0.001)))
        await until(lambda: len(made) > 2 and "load" in made[2].calls)
        await settle()
        for engine in made[:2]:
            engine.skew = -0.5
        made[2].skew = -0.5
        await pool.load(published(2))
        outcome = await switching
        assert not outcome.rolled_back and outcome.logprobs_compared == PROMPTS + 1
        assert "canary 1" in made[0].released


async def test_an_idle_session_goes_with_its_kv_and_one_that_ended_does_not_stay():
    async with generating(turns=0) as (pool, made, _):
        first = await pool.generate(request("a/1", "a", 6))
        await pool.generate(request("b/1", "b", 6))
        switching = asyncio.create_task(pool.reparallelize(command()))
        await until(lambda: len(made) > 2 and "b" in made[2].kv)
        await pool.release("b")
        await switching
        assert "a" in made[2].kv and "b" not in made[2].kv
        again = await pool.generate(request("a/2", "a", 2, [1, *first.ids, 9]))
        assert again.reused_tokens == 6


async def test_engines_that_hand_no_kv_over_compute_it_again():
    async with generating() as (pool, made, turns):
        for engine in made:
            engine.caps.live_reshape = False
        report = await pool.reparallelize(command())
        assert not report.rolled_back and report.moved_bytes == 0 and report.kv_recomputed_tokens > 6
        await assert_whole(turns)


async def test_kv_that_cannot_be_taken_is_computed_again():
    async with generating() as (pool, made, turns):
        made.prepare = lambda engine: (
            engine.answer.set(),
            engine.hooks.update(take_kv=raises(EngineError("full"))),
        )
        report = await pool.reparallelize(command())
        assert not report.rolled_back and report.moved_bytes == 0 and report.kv_recomputed_tokens > 6
        await assert_whole(turns)


async def test_a_turn_without_a_session_goes_on_too():
    async with generating(turns=0) as (pool, made, _):
        asked = request("alone", new=NEW)
        asked.session = ""
        turn = asyncio.create_task(pool.generate(asked))
        await settle()
        report = await pool.reparallelize(command())
        assert (await turn).ids == greedy([1], NEW) and report.sequences_continued == 1
        assert pool.router.sessions == {} and made[2].kv == {}


async def test_there_and_back_and_restarts_are_of_the_parallelism_in_use(monkeypatch):
    # Turns still run when the switch has ended.
    monkeypatch.setattr(switch_module, "POLL_S", 0.0)
    async with generating(restarts=1) as (pool, made, turns):
        await pool.reparallelize(command())
        made[2].gone.set()
        for _, task in turns:
            with pytest.raises(EngineLost):
                await task
        await settle()
        assert (made[3].spec.tp, made[3].version, pool.live) == (2, 1, 1)
        report = await pool.reparallelize(command(2, Parallelism(2, 1)))
        assert not report.rolled_back and [engine.spec.tp for engine in made[4:]] == [1, 1]
        assert (pool.live, pool.epoch) == (2, 2)


async def test_before_the_first_version_engines_are_just_replaced():
    async with running() as (pool, made, _):
        waiting = asyncio.create_task(pool.generate(request("a")))
        made.prepare = lambda engine: engine.answer.set()
        report = await pool.reparallelize(command())
        assert not report.rolled_back and made[2].served == [] and report.logprobs_compared == 0
        await pool.load(published(1))
        assert (await waiting).versions == [1]


async def test_a_busy_old_engine_answers_the_canaries_once_it_is_interrupted(monkeypatch):
    monkeypatch.setattr(switch_module, "EARLY_S", 0.01)
    async with generating() as (pool, made, turns):
        for engine in made[:2]:
            full_until_interrupted(engine, monkeypatch)
        report = await pool.reparallelize(command(logprob_tolerance=0.001))
        assert not report.rolled_back, report.message
        assert [name for name in made[0].served if name.startswith("canary")]
        await assert_whole(turns)


def full_until_interrupted(engine, monkeypatch) -> None:
    generate = engine.generate_all

    async def later(request):
        aborts = engine._aborts
        await until(lambda: not request.request_id.startswith("canary") or engine._aborts)
        made = await generate(request)
        if request.request_id.startswith("canary") and aborts == 0:
            made.ids, made.finish = [], "abort"
        return made

    monkeypatch.setattr(engine, "generate_all", later)


async def test_weights_wait_while_engines_are_compared_and_reach_the_new_ones():
    async with generating() as (pool, made, turns):
        release = asyncio.Event()
        made.prepare = lambda engine: (
            engine.answer.set(),
            engine.hooks.update(take_kv=release.wait),
        )
        switching = asyncio.create_task(pool.reparallelize(command()))
        await until(lambda: len(made) > 2 and "take_kv" in made[2].calls)
        loading = asyncio.create_task(pool.load(published(2)))
        await settle()
        assert not loading.done() and pool.version == 1
        release.set()
        await switching
        await loading
        assert (pool.version, made[2].version, made[0].version) == (2, 2, 1)
        for _, task in turns:
            await task


async def test_weights_that_are_gone_are_waited_for(monkeypatch):
    monkeypatch.setattr(switch_module, "RETRY_S", 0.0)
    async with generating(turns=0) as (pool, made, _):
        made.prepare = lambda engine: engine.vanished.add(1)
        switching = asyncio.create_task(pool.reparallelize(command()))
        await until(lambda: len(made) > 2 and "load" in made[2].calls)
        await pool.load(published(2))
        assert not (await switching).rolled_back and made[2].version == 2


# --- a switch that fails --------------------------------------------------------------------------


def raises(error):
    async def hook():
        raise error

    return hook


def dies(engine):
    async def hook():
        engine.gone.set()

    return hook


@pytest.mark.parametrize("method", ["start", "load", "take_kv", "stats"])
@pytest.mark.parametrize("how", ["dies", "hangs"])
async def test_what_goes_wrong_with_a_new_engine_is_rolled_back(method, how, monkeypatch):
    async with generating() as (pool, made, turns):

        def prepare(engine):
            engine.answer.set()
            hook = dies(engine) if how == "dies" else asyncio.Event().wait
            engine.hooks[method] = hook

        made.prepare = prepare
        if (method, how) == ("stats", "dies"):
            # It is asked for its figures only; its death shows when it is to take KV.
            made.prepare = lambda engine: engine.hooks.update(stats=dies(engine))
        prepare_s = 0.05 if how == "hangs" else 5.0
        report = await pool.reparallelize(command(prepare_s=prepare_s))
        assert report.rolled_back and report.message.startswith("tp2 was not reached, prepare failed: ")
        assert (report.parallelism, pool.parallelism, pool.epoch) == (Parallelism(2, 1), Parallelism(2, 1), 0)
        assert all(engine.gone.is_set() for engine in made[2:]) and pool.live == 2
        assert all(engine.offers == {} for engine in made)
        await assert_whole(turns)


@pytest.mark.parametrize("warm", [True, False])
async def test_weights_that_do_not_arrive_within_their_own_deadline_are_rolled_back(warm, monkeypatch):
    monkeypatch.setattr(pool_module, "fits_with_old", lambda *args: warm)
    async with generating() as (pool, made, turns):

        def prepare(engine):
            engine.answer.set()
            if engine.spec.tp == 2:
                engine.hooks["load"] = asyncio.Event().wait

        made.prepare = prepare
        report = await pool.reparallelize(command(load_s=0.05))
        assert report.rolled_back and report.cold is not warm
        assert "prepare failed: it took longer than 0.05 s, switch.load_s" in report.message
        assert (pool.parallelism, pool.epoch, pool.live) == (Parallelism(2, 1), 0, 2)
        await assert_whole(turns)
        await pool.load(published(2))
        assert pool.version == 2


async def test_the_wait_for_a_publication_is_no_part_of_the_time_to_load(monkeypatch):
    begun: list[float] = []

    def bounded(seconds, error):
        begun.append(seconds)
        return deadline(seconds, error)

    monkeypatch.setattr(switch_module, "deadline", bounded)
    async with generating() as (pool, made, turns):
        arrives = asyncio.Event()
        made[0].hooks["load"] = arrives.wait
        loading = asyncio.create_task(pool.load(published(1, number=2)))
        await until(lambda: made[0].calls.count("load") == 2)
        switching = asyncio.create_task(pool.reparallelize(command(load_s=4.0)))
        await until(lambda: len(made) == 3 and "start" in made[2].calls)
        await settle()
        assert begun == [5.0]  # prepare_s alone
        arrives.set()
        report = await switching
        assert not report.rolled_back and begun[:2] == [5.0, 4.0], report.message
        await loading
        await assert_whole(turns)


async def test_a_new_engine_that_dies_after_the_turns_were_interrupted_is_rolled_back():
    async with generating() as (pool, made, turns):
        for engine in made[:2]:
            engine.hooks["pause"] = lambda: dies(made[2])()
        report = await pool.reparallelize(command())
        assert report.rolled_back and "switch failed" in report.message and report.stall_s > 0
        await assert_whole(turns)
        assert pool.live == 2


async def test_an_old_engine_that_does_not_pause_in_time_keeps_its_turns():
    async with generating() as (pool, made, turns):
        late = asyncio.Event()
        made[1].hooks["pause"] = late.wait
        report = await pool.reparallelize(command(quiesce_s=0.05))
        assert report.rolled_back and "quiesce failed: it took longer than 0.05 s" in report.message
        late.set()
        await assert_whole(turns)


@pytest.mark.parametrize("when", ["offer_kv", "pause"])
async def test_an_old_engine_that_dies_costs_its_own_turns_only(when):
    async with generating() as (pool, made, turns):
        made[1].hooks[when] = dies(made[1])
        report = await pool.reparallelize(command())
        assert not report.rolled_back, report.message
        with pytest.raises(EngineLost):
            await turns[1][1]
        await assert_whole([turns[0], turns[2]])
        assert (pool.live, pool.parallelism) == (1, TWO)


async def test_other_logprobs_are_rolled_back_and_name_parallelism_and_difference():
    async with generating() as (pool, made, turns):

        def prepare(engine):
            engine.answer.set()
            engine.skew = -0.25

        made.prepare = prepare
        report = await pool.reparallelize(command(logprob_tolerance=0.1))
        assert report.rolled_back and report.max_logprob_difference == pytest.approx(0.25)
        assert "tp2: engine e/engine-0-epoch-1 differs by 0.25" in report.message
        assert report.stall_s == 0 and report.sequences_continued == 0
        await assert_whole(turns)
        assert made[0].served.count("0/1") == 1


async def test_kv_that_arrived_broken_is_found_by_the_canary_session():
    async with generating() as (pool, made, turns):

        def prepare(engine):
            engine.answer.set()
            generate = engine.generate_all

            async def broken(request):
                engine.skew = -0.5 if request.session.startswith("canary") else 0.0
                return await generate(request)

            engine.generate_all = broken

        made.prepare = prepare
        report = await pool.reparallelize(command(logprob_tolerance=0.1))
        assert report.rolled_back and "the canary session" in report.message
        await assert_whole(turns)


async def test_a_bug_is_rolled_back_too():
    async with generating() as (pool, made, turns):
        made[0].hooks["offer_kv"] = raises(ZeroDivisionError("a bug"))
        report = await pool.reparallelize(command())
        assert report.rolled_back and "a bug" in report.message
        await assert_whole(turns)


@pytest.mark.parametrize("error", [EngineError("it does not end"), RuntimeError("a bug")])
async def test_an_old_engine_that_does_not_end_rolls_nothing_back(error, caplog):
    async with generating() as (pool, made, turns):

        async def fail_to_stop():
            made[0].gone.set()
            raise error

        made[0].hooks["stop"] = fail_to_stop
        report = await pool.reparallelize(command())
        assert not report.rolled_back and report.parallelism == pool.parallelism == TWO
        assert not made[2].gone.is_set() and "left behind" in caplog.text and str(error) in caplog.text
        await assert_whole(turns)


# --- without memory for both ----------------------------------------------------------------------


async def test_a_cold_switch_ends_the_old_engines_first(monkeypatch):
    monkeypatch.setattr(pool_module, "fits_with_old", lambda *args: False)
    async with generating() as (pool, made, turns):
        made.prepare = lambda engine: (
            engine.answer.set(),
            engine.calls.append(f"{[one.gone.is_set() for one in made[:2]]}"),
        )
        report = await pool.reparallelize(command())
        assert report.cold and not report.rolled_back and made[2].calls[0] == "[True, True]"
        assert report.competing_s == report.kv_ahead_s == report.kv_rounds == 0
        assert report.moved_bytes == 0 and report.kv_recomputed_tokens > 6
        await assert_whole(turns)


async def test_a_cold_switch_that_fails_starts_the_old_engines_again(monkeypatch):
    monkeypatch.setattr(pool_module, "fits_with_old", lambda *args: False)
    async with generating() as (pool, made, turns):

        def prepare(engine):
            engine.answer.set()
            engine.skew = -0.5 if engine.spec.tp == 2 else 0.0

        made.prepare = prepare
        report = await pool.reparallelize(command())
        assert report.rolled_back and report.cold
        assert [engine.spec.tp for engine in made] == [1, 1, 2, 1, 1] and pool.live == 2
        await assert_whole(turns)
        made[3].gone.set()
        await settle()
        assert len(made) == 6 and pool.live == 2


async def test_a_pool_whose_old_engines_do_not_come_back_ends(monkeypatch):
    monkeypatch.setattr(pool_module, "fits_with_old", lambda *args: False)
    async with running() as (pool, made, watch):
        made.prepare = lambda engine: engine.hooks.update(start=raises(EngineError("no memory at all")))
        report = await pool.reparallelize(command())
        assert report.rolled_back
        with pytest.raises(EngineError, match="no memory at all"):
            await watch


@pytest.mark.parametrize("method", ["start", "load"])
async def test_a_pool_whose_old_engines_hang_as_they_come_back_ends_by_the_deadline(monkeypatch, method):
    monkeypatch.setattr(pool_module, "fits_with_old", lambda *args: False)
    async with running() as (pool, made, watch):
        await pool.load(published(1))

        def prepare(engine):
            engine.answer.set()
            former = engine.spec.tp == 1
            engine.hooks[method] = asyncio.Event().wait if former else raises(EngineError("no memory at all"))

        made.prepare = prepare
        for engine in made:
            engine.answer.set()
        report = await pool.reparallelize(command(recover_s=0.05))
        assert report.rolled_back and "prepare failed: no memory at all" in report.message
        with pytest.raises(DeadlineExceeded, match=r"longer than 0\.05 s, switch\.recover_s"):
            await watch


# --- epochs ---------------------------------------------------------------------------------------


async def test_commands_of_one_epoch_get_one_report_and_others_are_refused():
    async with generating() as (pool, made, turns):
        release = asyncio.Event()
        made.prepare = lambda engine: (engine.answer.set(), engine.hooks.update(start=release.wait))
        first = asyncio.create_task(pool.reparallelize(command(5)))
        impatient = asyncio.create_task(pool.reparallelize(command(5)))
        await settle()
        with pytest.raises(ReshapeRefused, match="switching to tp2, epoch 5"):
            await pool.reparallelize(command(6, Parallelism(2, 1)))
        with pytest.raises(StaleEpoch, match="epoch 4"):
            await pool.reparallelize(command(4))
        impatient.cancel()
        await settle()
        release.set()
        report = await first
        assert (await pool.reparallelize(command(5))) is report and len(made) == 3
        with pytest.raises(StaleEpoch, match=r"epoch 5 .* is not newer"):
            await pool.reparallelize(command(5, Parallelism(2, 1)))
        same = await pool.reparallelize(command(6))
        assert (len(made), pool.epoch, same.rolled_back, same.stall_s) == (3, 6, False, 0)
        await assert_whole(turns)


async def test_a_switch_that_was_rolled_back_is_reported_again_and_may_be_tried_anew():
    async with generating() as (pool, made, turns):
        made.prepare = lambda engine: engine.hooks.update(start=raises(EngineError("not now")))
        report = await pool.reparallelize(command(1))
        assert await pool.reparallelize(command(1)) is report and report.rolled_back
        made.prepare = lambda engine: engine.answer.set()
        assert not (await pool.reparallelize(command(2))).rolled_back
        await assert_whole(turns)


@pytest.mark.parametrize(
    "parallelism", [Parallelism(2, 2), Parallelism(1, 1), Parallelism(1, 1, 2), Parallelism(1, 1, 1, 2)]
)
async def test_parallelisms_of_other_devices_are_illegal(parallelism):
    async with running() as (pool, _, __):
        with pytest.raises(IllegalParallelism, match="does not fit the 2 devices of e"):
            await pool.reparallelize(command(parallelism=parallelism))


async def test_parallelisms_that_the_model_does_not_allow_are_illegal():
    async with running(engines=3) as (pool, _, __):
        with pytest.raises(IllegalParallelism, match="4 heads"):
            await pool.reparallelize(command(parallelism=Parallelism(1, 3)))


async def test_a_lease_that_cannot_be_given_back_undoes_nothing():
    given = []

    @asynccontextmanager
    async def reading(version, seconds):
        given.append((version, seconds))
        yield
        raise BusUnavailable("gone")

    async with generating(reading=reading) as (pool, _, turns):
        assert not (await pool.reparallelize(command())).rolled_back and pool.epoch == 1
        assert given == [(1, 5.0)]
        await pool.load(published(2))
        for _, task in turns:
            await task


async def test_a_pool_that_stops_when_the_old_engines_end_leaves_none():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        never = asyncio.Event()
        for engine in made:
            engine.hooks["stop"] = never.wait
        switching = asyncio.create_task(pool.reparallelize(command()))
        await until(lambda: "stop" in made[0].calls)
        stopping = asyncio.create_task(pool.stop())
        await settle()
        assert made[2].gone.is_set() and not stopping.done()
        never.set()
        await stopping
        with pytest.raises(asyncio.CancelledError):
            await switching


async def test_a_pool_that_stops_ends_a_switch_under_way():
    async with running() as (pool, made, _):
        made.prepare = lambda engine: engine.hooks.update(load=asyncio.Event().wait)
        await pool.load(published(1))
        switching = asyncio.create_task(pool.reparallelize(command()))
        await until(lambda: len(made) > 2 and "load" in made[2].calls)
        await pool.stop()
        assert all(engine.gone.is_set() for engine in made)
        with pytest.raises(asyncio.CancelledError):
            await switching


# --- contexts that outgrow engines ----------------------------------------------------------------


async def test_a_context_that_other_engines_hold_waits_for_it():
    async with generating(turns=0, waits=True, kv_tokens=32) as (pool, made, _):
        long = asyncio.create_task(pool.generate(request("a/1", "a", 8, [1] * 40)))
        await settle()
        assert not long.done() and pool.router.blocked == {"a": 48}
        assert not (await pool.reparallelize(command())).rolled_back
        assert made[2].spec.kv_tokens == 64
        assert (await long).ids == greedy([1] * 40, 8) and pool.router.blocked == {}


@pytest.mark.parametrize("waits, tokens", [(True, 70), (False, 40), (True, 300)])
async def test_a_context_that_no_engine_holds_or_nobody_switches_for_is_refused(waits, tokens):
    async with generating(turns=0, waits=waits, kv_tokens=32) as (pool, _, __):
        with pytest.raises(ContextTooLong):
            await pool.generate(request("a/1", "a", 8, [1] * tokens))
        assert pool.router.blocked == {} and pool.router.refused == 1


async def test_a_context_that_no_division_of_the_devices_holds_ends_and_shorter_ones_wait_on():
    async with generating(turns=0, waits=True, kv_tokens=32) as (pool, _, __):
        long = asyncio.create_task(pool.generate(request("a/1", "a", 8, [1] * 50)))
        other = asyncio.create_task(pool.generate(request("b/1", "b", 8, [1] * 40)))
        await settle()
        assert pool.router.blocked == {"a": 58, "b": 48}
        pool.router.refuse(58)
        with pytest.raises(ContextTooLong):
            await long
        assert pool.router.blocked == {"b": 48} and pool.router.refused == 1
        assert not (await pool.reparallelize(command())).rolled_back
        assert (await other).ids == greedy([1] * 40, 8)


async def test_nobody_waits_for_a_parallelism_that_failed_parity():
    async with generating(turns=0, waits=True, kv_tokens=32) as (pool, made, _):
        made.prepare = lambda engine: setattr(engine, "skew", -1.0)
        long = asyncio.create_task(pool.generate(request("a/1", "a", 8, [1] * 40)))
        await settle()
        assert (await pool.reparallelize(command())).rolled_back
        with pytest.raises(ContextTooLong):
            await long


async def test_engines_too_small_for_what_runs_are_refused():
    async with generating(turns=0, waits=True, kv_tokens=32) as (pool, _, __):
        await pool.reparallelize(command())
        await pool.generate(request("a/1", "a", 8, [1] * 40))
        with pytest.raises(ReshapeRefused, match=r"a context of 48 tokens,.* tp 1 holds only 32"):
            await pool.reparallelize(command(2, Parallelism(2, 1)))
        await pool.release("a")
        assert not (await pool.reparallelize(command(2, Parallelism(2, 1)))).rolled_back


async def test_an_engine_that_is_asked_for_its_last_counts_ends_though_its_end_is_cancelled():
    async with running(engines=2) as (pool, made, _):
        await pool.load(published(1))
        asked = asyncio.Event()

        async def hang() -> None:
            asked.set()
            await asyncio.Event().wait()

        made[0].hooks["stats"] = hang
        replicas = pool.router.replicas
        leaving = asyncio.create_task(replicas.leave(replicas.all[:1]))
        await asked.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert made[0].gone.is_set() and not made[1].gone.is_set()
