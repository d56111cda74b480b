"""Checks what becomes of decisions in a run: carried out, held, priced by what switches took, bounded."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from earl.config.run import RunConfig
from earl.errors import ConfigError, IllegalParallelism, LedgerError
from earl.obs.metrics import read_lines
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchOutcome
from earl.switch_figures import StageSwitch
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.monitor.workload import Monitor
from services.scheduler.parallelism.controller import RELIEVE_S, ParallelismController
from services.scheduler.parallelism.legal_layouts import LegalLayouts
from services.scheduler.parallelism.selector_loop import SelectorLoop
from services.scheduler.parallelism.split_loop import SplitLoop
from services.scheduler.profile.rows import parse
from services.scheduler.selector.corrected_profile import LimitedTable
from services.scheduler.selector.decision import Workload
from services.scheduler.selector.earl_policy import EarlPolicy
from services.scheduler.selector.stage_policies import Stages
from services.scheduler.state.switch_records import By
from tests.support.runs import tictactoe
from tests.support.selection import DP2, TP2, LongIsSharded, step_of
from tests.support.switching import APART, OK, RETRY_S, STAGE, TOTAL_S, World, whole
from tests.support.switching import TP1 as REPLICA_1
from tests.support.switching import TP2 as REPLICA_2

ROWS = """stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s,peak_memory_fraction
rollout,2,1,1,1,64,8,100,0.2
rollout,2,1,1,1,4096,8,50,0.4
rollout,1,2,1,1,64,8,90,0.1
rollout,1,2,1,1,4096,8,40,0.2
"""


class Pair(World):
    """One worker of four devices, as dp4 or dp2·tp2: the support's policy says dp2 or tp2."""

    def __init__(self) -> None:
        super().__init__(REPLICA_1)


def carrying_out(directory: Path, world: World) -> SelectorLoop:
    """The support's policy for rollout, cut from 100 tokens on, carried out."""
    selection = SelectorLoop(directory, Monitor(), switching=world.switching)
    selection.decide_by(lambda: Stages({STAGE: lambda start: LongIsSharded(100.0, start)}))
    return selection


def lines(directory: Path) -> list[tuple[int, str]]:
    return [(line["epoch"], line["held"]) for line in read_lines(directory / "decisions.jsonl")]


# --- what becomes of a decision -------------------------------------------------------------


def test_a_decision_is_carried_out_once_and_written_down(tmp_path: Path) -> None:
    world = Pair()
    one = carrying_out(tmp_path, world)
    one.step(1, step_of(50.0), now=world.now)
    one.step(2, step_of(120.0), now=world.now)
    one.step(3, step_of(130.0), now=world.now)  # it is on its way
    [command] = world.commands()
    assert (command.switch.epoch, command.switch.parallelism) == (1, Parallelism(2, 2))
    world.obey()
    assert world.stage.last is not None
    assert (world.stage.last.by, world.stage.last.step) == (By.SELECTOR, 3)
    assert world.stage.last.reason == "goes to tp2: lengths decide"
    one.step(4, step_of(140.0, running=TP2), now=world.now)
    one.step(5, step_of(50.0, running=TP2), now=world.now, last=True)  # the last: nothing comes after it
    assert lines(tmp_path) == [(0, ""), (1, ""), (0, ""), (0, ""), (0, "")]
    assert one.last[STAGE].chosen == DP2 and not world.commands()


def test_a_pinned_stage_is_decided_for_and_left_alone(tmp_path: Path) -> None:
    world = Pair()
    world.switching.pin(STAGE, True)
    one = carrying_out(tmp_path, world)
    one.step(1, step_of(120.0), now=world.now)
    assert not world.commands() and one.last[STAGE].chosen == TP2
    world.switching.pin(STAGE, False)
    one.step(2, step_of(120.0), now=world.now)
    assert len(world.commands()) == 1
    assert lines(tmp_path) == [(0, "rollout is pinned"), (1, "")]


def test_a_switch_that_a_decision_began_is_late_by_the_decisions_own_time(tmp_path: Path) -> None:
    world = Pair()
    one = carrying_out(tmp_path, world)
    one.step(1, step_of(120.0), now=world.now)
    [command] = world.commands()
    world.now += TOTAL_S
    assert world.commands() == [command]
    world.now += 1.0
    assert not world.commands() and world.stage.last is not None and world.stage.last.rolled_back
    barred = world.switching.barred(STAGE, world.now)
    assert list(barred) == [TP2.replica] and "no answer within" in barred[TP2.replica]
    world.now += RETRY_S
    one.step(2, step_of(130.0), now=world.now)
    assert len(world.commands()) == 1
    assert lines(tmp_path) == [(1, ""), (2, "")]


def test_a_decision_begins_where_the_stage_is_in_truth(tmp_path: Path) -> None:
    world = Pair()
    one = carrying_out(tmp_path, world)
    one.step(1, step_of(120.0), now=world.now)
    [command] = world.commands()
    world.tell(command, APART)
    world.commands()
    one.step(2, step_of(130.0), now=world.now)
    decided = list(read_lines(tmp_path / "decisions.jsonl"))
    # Rolled back: it decides from dp2 again, and what failed its parity check is not tried.
    assert decided[1]["verdict"]["before"]["tp"] == 1
    assert "is not used in this run again" in decided[1]["held"] and not world.commands()


def test_where_nothing_fits_a_sequence_that_waits_moves_nothing(tmp_path: Path) -> None:
    class Bursting(LongIsSharded):
        def decide(self, step: int, devices: int):
            decision = super().decide(step, devices)
            return replace(
                decision, candidates=tuple(replace(one, fits=False) for one in decision.candidates)
            )

    world = Pair()
    selection = SelectorLoop(tmp_path, Monitor(), switching=world.switching)
    selection.decide_by(lambda: Stages({STAGE: lambda start: Bursting(100.0, start)}))
    assert selection.relieve(step_of(120.0), now=world.now) is False
    assert lines(tmp_path) == [(0, "no layout holds it")] and not world.commands()
    selection.step(1, step_of(120.0), now=world.now)  # the ordinary rule: where most room is
    assert len(world.commands()) == 1


def test_what_switches_took_is_what_the_next_ones_cost() -> None:
    world = Pair()
    for at, (wanted, seconds) in enumerate([(REPLICA_2, 4.0), (REPLICA_1, 8.0), (REPLICA_2, 2.0)]):
        assert world.switching.cost_s(STAGE) == (None, 2.25, 3.25)[at]
        world.ask(wanted)
        [command] = world.commands()
        world.now += seconds
        world.tell(command, OK)
        world.commands()
    assert world.switching.cost_s(STAGE) == 2.25 and world.switching.target(STAGE) == Parallelism(2, 2)
    assert not world.switching.barred(STAGE, world.now) and world.switching.target("trainer") is None


# --- the policy's price ---------------------------------------------------------------------


def decided(policy: EarlPolicy, lengths: list[float]) -> list[int]:
    found = []
    for step, mean in enumerate(lengths, 2):
        policy.observe(Workload(mean, mean, mean, 8.0))
        after = policy.decide(step, 2).after
        assert isinstance(after, Parallelism)
        found.append(after.tp)
    return found


def test_a_dearer_switch_is_made_later_and_a_cheaper_one_sooner() -> None:
    table = LimitedTable(
        parse(ROWS.replace("rollout,1,2,1,1,64,8,90", "rollout,1,2,1,1,64,8,200"), "x"), STAGE
    )
    free, dear, cheap = (EarlPolicy(table, cost, DP2) for cost in (0.0, 0.0, 1e6))
    dear.price(1e6)
    lengths = [64.0] * 4
    assert decided(free, lengths)[-1] == 2 and decided(dear, lengths)[-1] == 1
    assert decided(cheap, lengths)[-1] == 1
    cheap.price(0.0)
    assert decided(cheap, lengths)[-1] == 2
    for bad in (-1.0, math.nan):
        with pytest.raises(ConfigError, match="a switch cannot cost"):
            free.price(bad)


# --- bounds ---------------------------------------------------------------------------------


def test_what_failed_is_no_candidate_and_what_cannot_hold_it_does_not_fit() -> None:
    table = LimitedTable(parse(ROWS, "x"), STAGE, holds=lambda one: 1000.0 * one.tp, longest=3000.0)
    assert table.predict(DP2, 900.0, 8.0).fits and table.predict(TP2, 1900.0, 8.0).fits
    assert table.predict(DP2, 1100.0, 8.0).reason == f"no replica of {DP2} holds a sequence of 1,100 tokens"
    assert not table.predict(TP2, 4000.0, 8.0).fits
    # No sequence is longer than the longest.
    assert (
        LimitedTable(parse(ROWS, "x"), STAGE, holds=lambda one: 3000.0, longest=3000.0)
        .predict(DP2, 4000.0, 8.0)
        .fits
    )
    table.block(DP2, 800.0)
    table.block(DP2, 950.0)
    assert table.predict(DP2, 799.0, 8.0).fits and not table.predict(DP2, 800.0, 8.0).fits
    table.bar({TP2.replica: "log-probs are 0.5 apart"})
    barred = table.predict(TP2, 100.0, 8.0)
    assert (
        not barred.fits and barred.tokens_per_device_s == 0.0 and barred.reason == "log-probs are 0.5 apart"
    )
    policy = EarlPolicy(table, 0.0, DP2)
    assert set(decided(policy, [64.0, 2000.0, 3000.0])) == {1}  # nothing fits, and nothing else is left


def model(directory: Path) -> Path:
    (directory / "model").mkdir(parents=True)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8, "vocab_size": 16}
    (directory / "model" / "config.json").write_text(
        json.dumps({"model_type": "llama", "intermediate_size": 64, "num_key_value_heads": 2, **sizes})
    )
    return directory


def test_layouts_are_what_model_and_devices_allow(tmp_path: Path) -> None:
    config = tictactoe(tmp_path, rollout={"kv_tokens": 1000, "tp": 1, "max_context_tokens": 64})
    directory = model(tmp_path)
    layouts = LegalLayouts(config, directory)
    assert list(map(str, layouts.legal("rollout", [4]))) == ["dp4", "dp2·tp2", "tp4"]
    assert list(map(str, layouts.legal("rollout", [4, 2]))) == ["dp6", "dp3·tp2"]
    assert [str(one) for one in layouts.legal("trainer", [2])] == ["dp2", "tp2", "cp2"]
    assert layouts.legal("rollout", []) == []
    for dp, one in ((0, Parallelism(tp=3)), (3, Parallelism(tp=2)), (0, Parallelism(tp=2, cp=2))):
        with pytest.raises(IllegalParallelism, match="on 4 devices; use dp4 or dp2·tp2 or tp4"):
            layouts.check("rollout", [4], dp, one)
    layouts.check("rollout", [4], 2, Parallelism(tp=2))
    # Four ranks share two key-value heads: no more room than two have.
    assert [layouts.holds("rollout")(Parallelism(tp=tp)) for tp in (1, 2, 4)] == [1000, 2000, 2000]
    # What a rank was given of a sequence at once grows with the ranks that share it.
    assert layouts.holds("trainer")(Parallelism(tp=2)) is None
    given = LegalLayouts(tictactoe(tmp_path, trainer={"microbatch_tokens": 512}), directory)
    assert [given.holds("trainer")(Parallelism(tp=2, cp=cp)) for cp in (1, 2)] == [512, 1024]
    assert layouts.holds("reference")(Parallelism(tp=2)) is None
    # A bound that somebody asked for is one to begin with; what the machine holds is not.
    assert layouts.longest == 64.0
    held = {"max_context_tokens": 0, "held_context_tokens": 100}
    assert LegalLayouts(tictactoe(tmp_path, rollout=held), directory).longest == math.inf
    unknown = LegalLayouts(config, tmp_path / "elsewhere")
    assert list(map(str, unknown.legal("rollout", [4]))) == ["dp4", "dp2·tp2", "tp4"]
    assert unknown.holds("rollout")(Parallelism(tp=2)) is None


def test_a_trainer_that_takes_turns_keeps_its_parallelism(tmp_path: Path) -> None:
    config = tictactoe(tmp_path, stack={"share": "alternate"}, scheduler={"selector": "static"})
    layouts = LegalLayouts(config, model(tmp_path))
    layouts.check("rollout", [4], 2, Parallelism(tp=2))
    with pytest.raises(IllegalParallelism, match="state is not on the devices while engines sample"):
        layouts.check("trainer", [2], 0, Parallelism(tp=2))


# --- a sequence that waits ------------------------------------------------------------------


async def stored() -> None:
    return None


def controller(directory: Path, world: World, config: RunConfig) -> ParallelismController:
    report = RunReport(directory)
    one = ParallelismController(config, directory, Monitor(), world.tables, report, stored)
    return one


def test_without_a_profile_the_next_larger_layout_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tictactoe(tmp_path, rollout={"kv_tokens": 30, "max_context_tokens": 128})
    world = Pair()
    one = controller(model(tmp_path), world, config)
    record, worker = world.tables.workers["w0"], world.workers[0]

    def beat(tokens: float) -> list:
        gauges = {"blocked_context_tokens": tokens}
        one.heartbeat(record, whole(worker.replica), worker.epoch, gauges, now=world.now)
        world.ended += one.switching.advance(world.now)
        return one.switching.commands(world.now)

    assert not beat(0.0)
    one.switching.pin(STAGE, True)
    assert not beat(50.0) and "waits in dp4: the stage is pinned" in caplog.text
    assert not beat(51.0) and "51 tokens" not in caplog.text  # for the same cause as before
    one.switching.pin(STAGE, False)
    [command] = beat(50.0)
    assert command.switch.parallelism == Parallelism(2, 2)  # an engine of two holds 60
    assert "no engine of dp4 holds a sequence of 50 tokens" in command.switch.reason
    assert beat(50.0) == [command]
    outcome = worker.told(command, OK)
    assert isinstance(outcome, SwitchOutcome)
    one.switching.answered(command, outcome, world.now)
    assert not beat(0.0) and worker.replica == REPLICA_2
    assert not beat(70.0) and "is known to hold it" in caplog.text
    assert not beat(71.0) and "71 tokens" not in caplog.text
    one.close()


def test_in_a_pool_a_sequence_waits_for_a_division_that_holds_it_or_is_refused(tmp_path: Path) -> None:
    config = tictactoe(tmp_path, rollout={"kv_tokens": 30, "max_context_tokens": 128})
    world = Pair()
    one = controller(model(tmp_path), world, config)
    record, asked, held = world.tables.workers["w0"], [], [True]

    def relieve(tokens: float, now: float) -> bool:
        asked.append(tokens)
        return held[0]

    def refused(tokens: float) -> float:
        gauges = {"blocked_context_tokens": tokens}
        return one.heartbeat(record, Parallelism(4), 0, gauges, now=world.now)

    assert refused(500.0) == 0.0, "without a pool the worker knows what its devices hold"
    one.splits = cast("SplitLoop", SimpleNamespace(relieve=relieve, close=lambda: None))
    assert refused(501.0) == 0.0 and refused(501.0) == 0.0 and asked == [501.0], "it is asked for once"
    world.now += RELIEVE_S
    held[0] = False
    assert refused(501.0) == 501.0 and refused(501.0) == 501.0 and asked == [501.0] * 3
    # What a layout of the present devices holds is no reason for a move.
    assert refused(50.0) == 0.0 and asked == [501.0] * 3 and one.switching.commands(world.now)
    one.close()


@pytest.mark.parametrize("selector", ["observe", "static"])
def test_where_nothing_is_carried_out_a_sequence_may_wait(tmp_path: Path, selector: str) -> None:
    world = Pair()
    one = controller(model(tmp_path), world, tictactoe(tmp_path, scheduler={"selector": selector}))
    gauges = {"blocked_context_tokens": 50.0}
    one.heartbeat(world.tables.workers["w0"], Parallelism(4), 0, gauges, now=world.now)
    assert not one.switching.commands(world.now)
    one.close()


# --- planned switches -----------------------------------------------------------------------


async def test_a_planned_stage_takes_no_command_and_its_switches_are_written_down(tmp_path: Path) -> None:
    sections = {"switch": {"plan": ["2 rollout tp=2"]}, "rollout": {"engines": 4}}
    world = Pair()
    planned = controller(model(tmp_path), world, tictactoe(tmp_path, **sections))
    with pytest.raises(LedgerError, match="the plan of this run says when rollout changes") as refused:
        await planned.set(STAGE, (0, Parallelism(tp=2)), True, 0.0)
    assert "--switch.plan" in refused.value.remedy and not world.stage.pinned
    made = StageSwitch(epoch=1, before=Parallelism(4), after=Parallelism(2, 2), reason="planned", stall_s=0.5)
    for _ in range(2):  # the answer to the first heartbeat was lost
        record = world.tables.workers["w0"]
        planned.heartbeat(record, Parallelism(2, 2), 1, {}, now=world.now, switches=[made])
    [line] = read_lines(tmp_path / "switches.jsonl")
    assert (line["by"], line["stage"], line["before"]["dp"], line["after"]["tp"]) == ("plan", STAGE, 4, 2)
    assert line["stall_s"] == 0.5 and not world.commands()
    assert world.switching.running(STAGE) == Parallelism(2, 2)
