"""Checks that the answers of an environment host are held against what its environment declared."""

from __future__ import annotations

import pytest

from earl.v1 import common_pb2, env_pb2
from services.env_gateway.results import fault_in

DECLARED = (0.0, 1.0)
COUNTED = (common_pb2.ENDING_OK, common_pb2.ENDING_TRUNCATED)
FAILURES = (common_pb2.ENDING_ENV_ERROR, common_pb2.ENDING_INFRA_ERROR, common_pb2.ENDING_TIMEOUT)


def fault(ending: common_pb2.Ending, reward: float, earned: float = 0.0) -> str:
    """earned: the episode's reward before this last step."""
    result = env_pb2.Result(reward=reward, done=True, ending=ending)
    return fault_in(result, 1 << 20, DECLARED, (earned,))


@pytest.mark.parametrize("ending", COUNTED)
def test_a_return_outside_of_the_declared_range_is_refused_whenever_it_may_train(
    ending: common_pb2.Ending,
) -> None:
    assert fault(ending, 1.0) == "" and fault(ending, 0.5, 0.5) == ""
    assert "return 1.5 is outside of the declared [0, 1]" in fault(ending, 1.5)
    assert "return 1.5 is outside" in fault(ending, 0.75, 0.75)
    assert "return -0.5 is outside" in fault(ending, -0.5)


@pytest.mark.parametrize("ending", FAILURES)
def test_what_cannot_train_needs_no_reward_in_range(ending: common_pb2.Ending) -> None:
    assert fault(ending, 1.5) == ""
