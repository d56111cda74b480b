"""EARL against TRL itself, which runs in the environment that `make setup-peers` makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from services.trainer.ranks.process_group import Group
from services.trainer.step.batch import Columns
from services.trainer.step.plan import ReplicaSequence, RoleColumn, TrainingPlan
from tests.peers import asking, cases, objective
from tests.support import needs
from tests.support.policy import alone, configuration, stepper_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]

# The whole way, from tokens and weights to the gradient of every parameter.
WHOLE = {
    "token mean": cases.settings("bnpo", moved=True),
    "sequence mean, unequal clip, KL": cases.settings(
        "grpo", epsilon=0.1, epsilon_high=0.3, beta=0.1, moved=True
    ),
    "entropy bonus, temperature": cases.settings("bnpo", entropy_coef=0.05, temperature=0.7, moved=True),
    # The first step on a batch: the ratio is 1, the correction for what the engine said is not.
    "truncated importance, constant, KL": cases.settings(
        "dr_grpo", cap=0.3, beta=0.05, normaliser=16, moved=False
    ),
}
FIRST_MOMENT = 0.5


@pytest.fixture(scope="module", autouse=True)
def trl() -> None:
    if not asking.PYTHON.exists():
        needs.lacking("there is no .venv-trl: make setup-peers")


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


group = alone


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
        loss_sequence_tokens=settings.get("normaliser", 0),
        importance="truncated" if settings["cap"] else "behaviour",
        importance_cap=settings["cap"] or 2.0,
        kl_coefficient=settings["beta"],
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
    stepper = stepper_for(group, directory / ("new" if settings["moved"] else "old"), config)
    advantages = objective.advantages_of(request, settings)
    np.testing.assert_allclose(advantages, theirs["advantages"], atol=objective.TOLERANCE)
    engine = request["sampler"] if settings["cap"] else theirs["old"]
    metrics = stepper.train(*_batch(request, engine, theirs["reference"], advantages))
    for key, value in {"loss": theirs["loss"], **theirs["metrics"]}.items():
        np.testing.assert_allclose(
            metrics[key], value, rtol=objective.TOLERANCE, atol=objective.TOLERANCE, err_msg=key
        )
    assert not settings["moved"] or metrics["clip_fraction"] > 0.01
    assert not settings["cap"] or 0.0 < metrics["truncated_fraction"] < 1.0
    expected = load_file(directory / "gradients.safetensors")
    for parameter, (moment, _) in stepper.optimizer.moments.items():
        # After one update from nothing the first moment is the gradient, scaled.
        gradient = moment / (1 - FIRST_MOMENT)
        torch.testing.assert_close(
            gradient, expected[f"{name}/{parameter}"], rtol=1e-4, atol=objective.TOLERANCE, msg=parameter
        )


def _batch(
    request: dict[str, Any],
    engine: list[list[float]],
    reference: list[list[float]] | None,
    advantages: list[float],
) -> tuple[TrainingPlan, Columns]:
    """The request's trajectories as one rank's batch, with log-probs per completion token, padded or not."""
    rows = list(zip(request["prompts"], request["completions"], request["mask"], strict=True))
    places = (RoleColumn("reference", ("reference/0",)),) if reference else ()
    items = tuple(
        ReplicaSequence(
            number, 1, f"trajectory/{number}/1", advantages[number], len(prompt) + len(completion), places
        )
        for number, (prompt, completion, _) in enumerate(rows)
    )
    plan = TrainingPlan(
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
    columns.take(items)
    for i, item in enumerate(items):
        prompt, completion, mask = rows[item.ticket_id]
        given = {"logprobs": engine, "reference": reference or engine}
        for name, into in columns.of(i).items():
            if name in given:
                kept = np.asarray(mask) * given[name][item.ticket_id][: len(mask)]
                into[:] = [*[0.0] * len(prompt), *kept]
            else:
                into[:] = [*prompt, *completion] if name == "tokens" else [*[0] * len(prompt), *mask]
    return plan, columns
