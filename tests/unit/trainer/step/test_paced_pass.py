"""Passes on paced devices: the same parameters, each one counted, and memory that is the table's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from earl.config.run import RunConfig
from earl.errors import OutOfMemory
from earl.parallelism import TRAINER, Parallelism
from services.trainer.ranks.process_group import Group
from services.trainer.step.paced_pass import PacedPass
from tests.support.policy import alone, configuration, gathered, model_directory, stepper_for, train

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
group = alone
HEAD = "stage,dp,cp,tp,context_tokens,concurrency,tokens_per_device_s\n"


def paced(directory: Path, rows: str, **trainer: object) -> RunConfig:
    path = directory / "devices.csv"
    path.write_text(HEAD + rows)
    config = configuration(**trainer)
    return config.model_copy(update={"paced": config.paced.model_copy(update={"table": str(path)})})


def test_paced_steps_train_the_same_and_are_counted(group: Group, tmp_path: Path) -> None:
    model = model_directory(tmp_path)
    real = stepper_for(group, model, configuration(minibatches=2))
    fast = stepper_for(group, model, paced(tmp_path, "trainer,1,1,1,8,4,1e9\n", minibatches=2))
    metrics = [train(stepper, 1) for stepper in (real, fast)]
    assert "paced_passes" not in metrics[0]
    assert (metrics[1]["paced_passes"], metrics[1]["late_passes"]) == (2.0, 2.0)
    for name, tensor in gathered(real).items():
        assert torch.equal(gathered(fast)[name], tensor)


def test_a_pass_lasts_at_least_its_time(tmp_path: Path) -> None:
    config = paced(tmp_path, "trainer,2,2,1,8,4,1000\n")
    pacing = PacedPass(config, TRAINER, Parallelism(2, 1, 2))
    began_s = time.perf_counter()
    pacing.begin()
    # 200 tokens on a replica of two devices of 1,000 a second each.
    pacing.wait(4, 200)
    assert time.perf_counter() - began_s >= 0.1
    assert pacing.count.steps == 1


def test_a_batch_that_the_table_has_out_of_memory_is_refused(group: Group, tmp_path: Path) -> None:
    rows = "trainer,1,1,1,8,4,1e9\ntrainer,1,1,1,8,16,oom\n"
    stepper = stepper_for(group, model_directory(tmp_path), paced(tmp_path, rows))
    with pytest.raises(OutOfMemory, match="tp1 of trainer out of memory for 17 sequences"):
        train(stepper, 1)
    assert stepper.optimizer.updates == 0


def test_a_stage_without_rows_is_not_paced(tmp_path: Path) -> None:
    pacing = PacedPass(paced(tmp_path, "trainer,1,1,1,8,4,1\n"), "reference", Parallelism(1))
    pacing.check(10**6, 10**9)
    pacing.wait(10**6, 10**9)
    assert not pacing.active and pacing.count.steps == 0
