"""EARL against TRL itself, which runs in the environment that `make setup-peers` makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from services.trainer.batch import Columns
from services.trainer.group import Group
from services.trainer.plan import Item, Plan
from tests.peers import asking, cases, objective
from tests.support.policy import configuration, stepper_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not asking.PYTHON.exists(), reason="there is no TRL: make setup-peers"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]

# The whole way, from tokens and weights to the gradient of every parameter.
WHOLE = {
    "token mean": cases.settings("bnpo"),
    "sequence mean, unequal clip": cases.settings("grpo", epsilon=0.1, epsilon_high=0.3),
    "entropy bonus, temperature": cases.settings("bnpo", entropy_coef=0.05, temperature=0.7),
}
FIRST_MOMENT = 0.5


@pytest.fixture(scope="module")
def formulas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("formulas")
    asking.models(directory)
    return asking.ask(directory, asking.formulas_request())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("whole")
    asking.models(directory)
    return directory, asking.ask(directory, {**cases.trajectories(), "cases": WHOLE})


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    torch.set_num_threads(1)
    group = Group("cpu")
    yield group
    group.close()


@pytest.mark.parametrize("name", cases.cases())
def test_formulas_agree(formulas: dict[str, Any], name: str) -> None:
    theirs = formulas["cases"][name]
    objective.check(objective.ours(asking.formulas_request(), theirs["settings"]), theirs)


def test_the_recorded_numbers_are_still_trls(formulas: dict[str, Any]) -> None:
    recorded = json.loads(asking.RECORDED.read_text(encoding="utf-8"))["answer"]["cases"]
    assert set(recorded) == set(formulas["cases"])
    for name, theirs in formulas["cases"].items():
        for key in ("advantages", "loss", "gradient"):
            np.testing.assert_allclose(recorded[name][key], theirs[key], atol=1e-6, err_msg=f"{name}: {key}")


@pytest.mark.parametrize("name", WHOLE)
def test_loss_and_parameter_gradients_agree(
    whole: tuple[Path, dict[str, Any]], group: Group, name: str
) -> None:
    """The trainer's own step, on the columns that a rollout worker would have written."""
    directory, answer = whole
    theirs, settings = answer["cases"][name], WHOLE[name]
    request = cases.trajectories()
    config = configuration(
        loss_mean=objective.MEANS[settings["loss_type"]],
        clip_low=settings["epsilon"],
        clip_high=settings["epsilon_high"],
        entropy_coefficient=settings["entropy_coef"],
        max_grad_norm=1e9,
        betas=(FIRST_MOMENT, 0.9),
    )
    temperature = settings.get("temperature", 1.0)
    config = config.model_copy(
        update={"scheduler": config.scheduler.model_copy(update={"temperature": temperature})}
    )
    stepper = stepper_for(group, directory / "new", config)
    advantages = objective.advantages_of(request, settings)
    np.testing.assert_allclose(advantages, theirs["advantages"], atol=objective.TOLERANCE)
    plan, columns = _batch(request, theirs["old"], advantages)
    metrics = stepper.train(plan, columns)
    loss = metrics["loss"]
    np.testing.assert_allclose(loss, theirs["loss"], rtol=objective.TOLERANCE, atol=objective.TOLERANCE)
    expected = load_file(directory / "gradients.safetensors")
    assert metrics["clip_fraction"] > 0.01
    for parameter, (moment, _) in stepper.optimizer.moments.items():
        # After one update from nothing the first moment is the gradient, scaled.
        gradient = moment / (1 - FIRST_MOMENT)
        torch.testing.assert_close(
            gradient, expected[f"{name}/{parameter}"], rtol=1e-4, atol=objective.TOLERANCE, msg=parameter
        )


def _batch(request: dict[str, Any], old: list[list[float]], advantages: list[float]) -> tuple[Plan, Columns]:
    """The request's trajectories as one rank's batch. old: log-probs before the update, per completion."""
    rows = list(zip(request["prompts"], request["completions"], request["mask"], old, strict=True))
    items = tuple(
        Item(number, 1, f"trajectory/{number}/1", advantages[number], len(prompt) + len(completion))
        for number, (prompt, completion, _, _) in enumerate(rows)
    )
    plan = Plan(
        batch_id=1,
        version=1,
        objective="policy_gradient",
        ranks=(items,),
        publish=False,
        checkpoint=False,
        progress=0.0,
        first_of_phase=True,
    )
    columns = Columns()
    for item, name, into in columns.take(items):
        prompt, completion, mask, logprobs = rows[item.ticket_id]
        trained = np.asarray(mask, np.float32)
        into[:] = {
            "tokens": np.asarray([*prompt, *completion], np.int32),
            "loss_mask": np.asarray([*[0] * len(prompt), *mask], np.uint8),
            "logprobs": np.asarray([*[0.0] * len(prompt), *(trained * logprobs[: len(mask)])], np.float32),
        }[name]
    return plan, columns
