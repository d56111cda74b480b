"""The trainer's planned switches: before the batch of their version, and back where it goes back."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from earl.config.layout_plan import LayoutPlan
from earl.config.scheduler import SwitchConfig
from earl.errors import TrainerError
from earl.parallelism import ROLLOUT, TRAINER, Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome
from earl.switch_figures import StageSwitch
from services.trainer.ranks.codec import command_from_rank0
from services.trainer.ranks.switch_requests import SwitchRequests
from services.trainer.stage.commands import RankCommand
from services.trainer.stage.planned_layouts import PlannedTrainerLayouts
from services.trainer.stage.stage_rank0 import StageRank0

DP2, TP2 = Parallelism(2), Parallelism(1, 2)
# Versions 2 and 3 are trained as dp2, 4 and 5 as tp2, 6 and newer as dp2 again.
PLAN = LayoutPlan.of(["3 trainer tp=2", "5 trainer dp=2"], 2, {ROLLOUT: DP2, TRAINER: DP2})


class Ranks:
    """Rank 0 of two ranks without a scheduler: it carries out what it is told to."""

    def __init__(self) -> None:
        self.reports: list[StageSwitch[Parallelism]] = []
        self.stage = object.__new__(StageRank0)
        self.stage._switches = SwitchRequests(DP2, lambda parallelism: None)
        self.stage._commanded = 0
        self.stage._pending = None

        def call_soon(call: Callable[..., Any], *arguments: Any) -> None:
            call(*arguments)

        self.stage._io = SimpleNamespace(call_soon=call_soon)  # type: ignore[assignment]
        self.stage.scheduler = SimpleNamespace(  # type: ignore[assignment]
            report_switch=self.reports.append, set_parallelism=lambda parallelism, epoch: None
        )
        self.layouts = PlannedTrainerLayouts(self.stage, PLAN, SwitchConfig())

    def switch(self, version: int, message: str = "") -> Parallelism | None:
        """The layout that the version's switch goes to; None if it needs none. message: it is rolled back."""
        encoded = self.layouts.due(version)
        if not encoded:
            return None
        kind, body = RankCommand.decode(encoded)
        assert kind is RankCommand.SWITCH
        command = command_from_rank0(body)
        self.stage.end_switch(
            command,
            SwitchOutcome(
                epoch=command.epoch,
                parallelism=self.stage.parallelism if message else command.parallelism,
                rolled_back=bool(message),
                message=message,
            ),
        )
        return command.parallelism


def test_a_switch_comes_before_the_batch_of_its_version_and_once() -> None:
    ranks = Ranks()
    assert [ranks.switch(version) for version in (1, 2, 3, 4, 4, 5, 6, 6)] == [
        None, None, None, TP2, None, None, DP2, None,
    ]  # fmt: skip
    assert [(report.epoch, report.before, report.after) for report in ranks.reports] == [
        (1, DP2, TP2), (2, TP2, DP2),
    ]  # fmt: skip
    assert "from step 3 on" in ranks.reports[0].reason


def test_a_trainer_that_goes_back_trains_in_the_layout_of_then() -> None:
    ranks = Ranks()
    assert [ranks.switch(version) for version in (5, 3, 4)] == [TP2, DP2, TP2]


def test_a_switch_that_fails_ends_the_trainer() -> None:
    ranks = Ranks()
    assert ranks.switch(4, "not enough memory") == TP2
    with pytest.raises(TrainerError, match="keep dp2, and the plan has tp2 for version 4"):
        ranks.layouts.due(4)
    assert ranks.reports[0].rolled_back and ranks.reports[0].message == "not enough memory"


def test_a_switch_that_another_commands_is_not_reported_as_the_stages_own() -> None:
    ranks = Ranks()
    ranks.switch(4)
    command = SwitchCommand(7, DP2)
    outcome = ranks.stage._switches.ask(command)
    ranks.stage.next_switch()
    ranks.stage.end_switch(command, SwitchOutcome(epoch=7, parallelism=DP2))
    assert outcome.result().epoch == 7 and len(ranks.reports) == 1
