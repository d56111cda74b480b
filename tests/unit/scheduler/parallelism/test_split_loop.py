"""Decisions about a pool's division in a run: what is measured, carried out, held back and written down."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from earl.cli.lib.splits import moves_listed, read_splits, split_lines, splits_at
from earl.errors import ConfigError, IllegalParallelism, LedgerError
from earl.parallelism import POOLED, Parallelism
from services.scheduler.monitor.length_sketch import Quantiles
from services.scheduler.monitor.workload import DoneWork, ObservedWorkload, StepFigures
from services.scheduler.parallelism.device_pool import DevicePool
from services.scheduler.parallelism.split_loop import SplitLoop, rollout_device_s, work_of
from services.scheduler.selector.decision import LayoutCandidate, Workload
from services.scheduler.state.switch_records import By
from services.scheduler.wakeup import Wakeup
from tests.unit.scheduler.parallelism.test_device_moves import POOL, World

BATCH = Workload(100.0, 120.0, 150.0, 64.0)


def figures(*device_s: float) -> StepFigures:
    """A step whose batch took so many device-seconds of each stage, of two or three."""
    tokens = BATCH.mean_tokens * BATCH.concurrency
    stages = {
        stage: ObservedWorkload(BATCH, BATCH.concurrency, tokens / seconds if seconds else None)
        for stage, seconds in zip(POOLED, device_s, strict=False)
    }
    stages["rollout"] = replace(stages["rollout"], done=DoneWork(float(device_s[0] > 0), device_s[0]))
    return StepFigures({}, stages, 0.0, Quantiles(0, 0, 0, 0), Quantiles(0, 0, 0, 0))


class Deciding:
    """A world of workers, two of them if none else is given, whose division a loop decides."""

    def __init__(self, directory: Path, world: World | None = None, **options: Any) -> None:
        self.world, self.directory, self.pinned = world or World(4, 4), directory, False
        self.layouts: Any = SimpleNamespace(
            check=lambda *_: None, legal=lambda stage, counts: [Parallelism(counts[0])]
        )
        report: Any = SimpleNamespace(moved=lambda *_: None)
        world = self.world
        self.most: dict[str, int] = dict.fromkeys(world.stages, world.pool)
        self.pool = DevicePool(
            world.moves, world.switching, self.layouts, directory, report, Wakeup(), self.most
        )
        self.loop = SplitLoop(
            self.pool, directory, 1.0, **({"carries_out": True, "pinned": lambda: self.pinned} | options)
        )
        self.steps = 0

    def step(self, *device_s: float, last: bool = False) -> None:
        self.steps += 1
        self.loop.step(self.steps, figures(*device_s), now=self.world.now, last=last)

    @property
    def lines(self) -> list:
        return read_splits(self.directory)


@pytest.fixture
def deciding(tmp_path: Path) -> Iterator[Deciding]:
    deciding = Deciding(tmp_path)
    yield deciding
    deciding.loop.close()


def test_devices_follow_the_work_and_the_decision_is_written_down(deciding: Deciding):
    deciding.step(60.0, 20.0)
    move = deciding.pool.moves.move
    assert move is not None and move.after == (6, 2) and move.step == 2
    [line] = deciding.lines
    assert (line["here"], line["best"]) == ({"rollout": 4, "trainer": 4}, {"rollout": 6, "trainer": 2})
    assert (line["moves"], line["move"], line["held"]) == (True, 1, "")
    assert len(line["candidates"]) == POOL - 1
    # While they move, and in the step that they ended in, nothing is measured.
    deciding.step(60.0, 20.0)
    deciding.world.settle()
    deciding.step(60.0, 99.0)
    assert len(deciding.lines) == 1
    deciding.step(60.0, 20.0)
    assert deciding.world.devices == (6, 2) and not deciding.lines[-1]["moves"]
    assert deciding.lines[-1]["cost_s"] == pytest.approx(0.5), "the stall that was measured"
    assert list(moves_listed(deciding.lines)) == [f"step 2: {line['sentence']}"]
    text = "\n".join(split_lines(splits_at(deciding.lines, 2)[0]))
    assert "60.00 device-seconds of rollout" in text and "carried out by move 1" in text
    assert "rollout   6, trainer   2: 10.00 s a step  (best)" in text
    with pytest.raises(ConfigError, match="for step 99"):
        splits_at(deciding.lines, 99)


def test_what_is_pinned_or_over_or_not_measured_moves_nothing(deciding: Deciding):
    deciding.pinned = True
    deciding.step(60.0, 20.0)
    assert deciding.lines[-1]["moves"] and deciding.lines[-1]["held"] == "a stage of the pool is pinned"
    deciding.pinned = False
    deciding.step(60.0, 0.0)
    assert len(deciding.lines) == 1
    assert work_of(figures(60.0, 0.0), POOLED[:2], 60.0) is None
    assert work_of(figures(60.0, 20.0), POOLED[:2], None) is None
    deciding.step(60.0, 20.0, last=True)
    assert deciding.pool.moves.move is None
    deciding.step(60.0, 20.0)
    assert deciding.pool.moves.move is not None


def test_an_observer_moves_nothing(tmp_path: Path):
    deciding = Deciding(tmp_path, carries_out=False)
    deciding.step(60.0, 20.0)
    assert deciding.pool.moves.move is None and deciding.lines[-1]["moves"]
    deciding.loop.close()


def test_devices_and_layouts_are_decided_together_and_written_down(tmp_path: Path):
    def weighed(stage: str, counts: Sequence[int], slots: float) -> dict[int, list[LayoutCandidate]]:
        assert slots == (16.0 if stage == "rollout" else math.inf)
        layouts = {count: [(Parallelism(count), 100.0)] for count in counts}
        if stage == "rollout":
            layouts[2].append((Parallelism(1, 2), 400.0))
        return {
            count: [LayoutCandidate(layout, rate, None, True, 1 / rate) for layout, rate in known]
            for count, known in layouts.items()
        }

    deciding = Deciding(tmp_path, weighed=weighed, slots=16.0)
    deciding.step(40.0, 60.0)
    move = deciding.pool.moves.move
    assert move is not None and move.after == (2, 6)
    assert move.replicas_after == {"rollout": (2, 1, 1), "trainer": (1, 1, 1)}
    [line] = deciding.lines
    best = next(each for each in line["candidates"] if each["rollout"] == 2)
    assert best["layouts"] == {"rollout": "tp2", "trainer": "dp6"} and not line["urgent"]
    assert "rollout   2, trainer   6: 10.00 s a step with rollout tp2, trainer dp6  (best)" in "\n".join(
        split_lines(line)
    )
    assert deciding.pool.is_moving("rollout") and deciding.pool.is_moving("trainer")
    deciding.world.settle()
    assert (deciding.world.devices, deciding.world.tps) == ((2, 6), (2, 1))
    deciding.step(40.0, 60.0)
    # What rollout did in its former layout is no measure of the present one; then nothing is better.
    for _ in range(4):
        deciding.step(10.0, 60.0)
    assert deciding.lines[-1]["rollout_device_s"] == 10.0 and not deciding.lines[-1]["moves"]
    assert deciding.world.devices == (2, 6) and not deciding.pool.is_moving("rollout")
    deciding.loop.close()


def test_a_step_in_which_a_layout_changed_is_no_measure(deciding: Deciding):
    deciding.step(40.0, 40.0)
    world = deciding.world
    world.switching.ask("rollout", (2, 1, 1), by=By.OPERATOR, reason="why", now=world.now)
    deciding.step(99.0, 1.0)
    world.settle()
    deciding.step(99.0, 1.0)
    assert [line["step"] for line in deciding.lines] == [2]
    deciding.step(40.0, 40.0)
    assert deciding.lines[-1]["rollout_device_s"] == 40.0


def test_a_reference_stage_is_measured_too_and_the_move_that_gains_most_is_made_first(tmp_path: Path):
    deciding = Deciding(tmp_path, World(4, 2, reference=2))
    assert work_of(figures(20.0, 30.0), POOLED, 20.0) is None, "no rate of the reference stage"
    assert len(deciding.pool.splits()) == 21
    # 20 / 4, 44 / 2 and 24 / 2 seconds; 20 / 2, 44 / 4 and 24 / 2 are best: a move of two devices.
    deciding.step(20.0, 44.0, 24.0)
    [line] = deciding.lines
    assert line["best"] == line["after"] == {"rollout": 2, "trainer": 4, "reference": 2}
    assert (line["reference_device_s"], line["move"]) == (24.0, 1)
    text = "\n".join(split_lines(line))
    assert "24.00 device-seconds of reference" in text and "rollout   2, trainer   4, reference   2:" in text
    deciding.loop.close()


def test_what_protected_environments_do_not_send_to_the_reference_stage_is_not_counted():
    step = figures(20.0, 30.0, 10.0)
    protected = Workload(100.0, 120.0, 150.0, 16.0)
    stages = dict(step.stages) | {"reference": ObservedWorkload(protected, 16.0, 640.0)}
    work = work_of(replace(step, stages=stages), POOLED, 20.0)
    assert work == pytest.approx((20.0, 30.0, 2.5))


def test_rollouts_work_is_taken_over_steps_in_which_episodes_end_in_waves():
    waves = [DoneWork(0.0, 10.0), DoneWork(2.5, 20.0), DoneWork(0.5, 15.0)]
    assert rollout_device_s(waves) == pytest.approx(15.0)
    assert rollout_device_s([]) is None and rollout_device_s(waves[:1]) is None


# --- a sequence that waits ------------------------------------------------------------------

# Tokens that a device of a replica of each stage holds.
HELD_TOKENS = {"rollout": 100, "trainer": 300, "reference": 1000}


def by_size(stage: str, counts: Sequence[int], slots: float) -> dict[int, list[LayoutCandidate]]:
    """Layouts of replicas of one, two and four devices, the smaller ones quicker."""
    return {
        count: [
            LayoutCandidate(Parallelism(count // tp, tp), 100.0 - tp, None, True, 1.0)
            for tp in (1, 2, 4)
            if count % tp == 0
        ]
        for count in counts
    }


def holds(stage: str, layout: Parallelism, tokens: float) -> bool:
    return tokens <= HELD_TOKENS[stage] * layout.tp


def relieving(directory: Path, world: World, **options: Any) -> Deciding:
    return Deciding(directory, world, **{"weighed": by_size, "holds": holds} | options)


def test_devices_move_at_once_for_a_sequence_that_no_layout_of_rollouts_devices_holds(tmp_path: Path):
    deciding = relieving(tmp_path, World(3, 5))
    assert deciding.loop.relieve(350.0, now=deciding.world.now), "before a step was measured"
    move = deciding.pool.moves.move
    assert move is not None and move.after == (4, 4), "the nearest, also of the trainer a layout holds it"
    assert (move.replicas_after["rollout"], move.replicas_after["trainer"]) == ((4, 1, 1), (2, 1, 1))
    [line] = deciding.lines
    assert line["urgent"] and line["moves"] and line["move"] == 1
    assert (
        "at once: no layout of rollout 3, trainer 5 holds a sequence of 350 tokens, which waits"
        in (line["sentence"])
    )
    deciding.world.settle()
    assert (deciding.world.devices, deciding.world.tps) == ((4, 4), (4, 2))
    deciding.loop.close()


def test_a_sequence_that_no_division_holds_waits_for_nothing(tmp_path: Path):
    deciding = relieving(tmp_path, World(3, 5))
    assert not deciding.loop.relieve(401.0, now=deciding.world.now)
    # Rollout would hold it, and the trainer on what is left would not.
    trainer: Any = {"rollout": 400, "trainer": 30}
    narrow = relieving(
        tmp_path, World(3, 5), holds=lambda stage, layout, tokens: tokens <= trainer[stage] * layout.tp
    )
    assert not narrow.loop.relieve(350.0, now=narrow.world.now)
    assert not deciding.lines and deciding.pool.moves.move is None and narrow.pool.moves.move is None
    narrow.loop.close()
    deciding.loop.close()


def test_of_three_stages_two_moves_may_lead_to_what_a_sequence_needs(tmp_path: Path):
    deciding = relieving(tmp_path, World(2, 3, reference=3))
    first = deciding.loop.relieve(350.0, now=deciding.world.now)
    assert first and deciding.pool.moves.move is not None
    deciding.world.settle()
    while deciding.world.devices[0] < 4:
        assert deciding.loop.relieve(350.0, now=deciding.world.now)
        deciding.world.settle()
    assert deciding.world.tps[0] == 4 and deciding.pool.moves.move.number <= 2
    deciding.loop.close()


def test_a_pinned_stage_or_an_observer_moves_nothing_for_a_sequence(tmp_path: Path):
    deciding = relieving(tmp_path, World(3, 5))
    deciding.pinned = True
    assert deciding.loop.relieve(350.0, now=deciding.world.now), "it may be unpinned"
    assert deciding.lines[-1]["held"] == "a stage of the pool is pinned"
    observer = relieving(tmp_path, World(3, 5), carries_out=False)
    assert not observer.loop.relieve(350.0, now=observer.world.now)
    observer.loop.close()
    deciding.loop.close()


# --- an operator's request ------------------------------------------------------------------


def test_a_move_with_layouts_is_refused_before_anything_changes(tmp_path: Path):
    def check(stage: str, counts: Sequence[int], dp: int, replica: Parallelism) -> None:
        if counts[0] % replica.tp or (dp and dp * replica.tp != counts[0]):
            raise IllegalParallelism(f"{stage} cannot have {replica}", "use others")

    deciding = Deciding(tmp_path, World(4, 4))
    pool, now = deciding.pool, deciding.world.now
    deciding.layouts.check, deciding.most["trainer"] = check, 6
    for layouts in ({"trainer": (0, Parallelism(1, 4))}, {"rollout": (3, Parallelism(1, 1))}):
        with pytest.raises(IllegalParallelism, match="cannot have"):
            pool.ask((2, 6), layouts=layouts, now=now)
    with pytest.raises(LedgerError, match="trainer has processes for 6 devices, not for 7"):
        pool.ask((1, 7), now=now)
    assert pool.moves.move is None and not pool.is_switching
    move = pool.ask((2, 6), layouts={"trainer": (3, Parallelism(1, 2))}, now=now)
    assert move is not None and move.replicas_after == {"rollout": (1, 1, 1), "trainer": (2, 1, 1)}
    deciding.world.settle()
    assert (deciding.world.devices, deciding.world.tps) == ((2, 6), (1, 2))
    deciding.loop.close()
