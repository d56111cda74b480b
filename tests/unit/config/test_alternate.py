"""stack.share = "alternate": what is refused before anything starts, and run files of before."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from earl.config.check import check_alternate
from earl.config.load import set_override
from earl.config.run import RunConfig
from earl.errors import ConfigError

TURNS = {"stack": {"share": "alternate"}, "scheduler": {"selector": "static"}}


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "r", "environment": {"name": "e"}, **sections})


def test_share_is_false_true_or_alternate():
    assert [config(stack={"share": share}).alternates for share in (False, True, "alternate")] == [
        False,
        False,
        True,
    ]
    with pytest.raises(ValidationError):
        config(stack={"share": "turns"})
    for text, value in (("true", True), ("alternate", "alternate")):
        table: dict[str, Any] = {"name": "r", "environment": {"name": "e"}}
        set_override(table, "stack.share", text)
        assert RunConfig.model_validate(table).stack.share == value


@pytest.mark.parametrize(
    ("sections", "message", "remedy"),
    [
        (TURNS | {"scheduler": {}}, "scheduler.selector", '"observe" or "static"'),
        (TURNS | {"rollout": {"engine": "vllm", "device": "cpu"}}, "on GPUs only", 'engine = "torch"'),
        ({"trainer": {"offload_dir": "/d"}}, "trainer.offload_dir", 'stack.share = "alternate"'),
        (
            TURNS
            | {
                "environment": {"name": "e", "seats": 2, "opponent": "frozen"},
                "scheduler": {"selector": "static", "steps": 9},
            },
            "frozen version",
            "remove opponent",
        ),
    ],
)
def test_what_cannot_take_turns_is_refused_with_a_remedy(sections, message, remedy):
    with pytest.raises(ConfigError, match=message) as raised:
        check_alternate(config(**sections))
    assert remedy in raised.value.remedy


def test_turns_of_torch_engines_and_of_vllm_on_gpus_are_taken():
    check_alternate(config(**TURNS, trainer={"offload_dir": "/d"}))
    check_alternate(config(**TURNS, rollout={"engine": "vllm"}))
    check_alternate(config())
