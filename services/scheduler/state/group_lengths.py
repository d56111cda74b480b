"""The lengths of a group's trajectories, which those of later groups of its task are predicted from."""

from __future__ import annotations

import msgspec


class GroupLengths(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The lengths of one group, in tokens. environment, task: of its tickets.

    predicted: of a response, when the group was issued; 0 if nothing was. prompts, responses: of each of its
    trajectories; a response is all that comes after the first prompt.
    """

    environment: str
    task: int
    group: int
    predicted: int
    prompts: tuple[int, ...]
    responses: tuple[int, ...]


# The groups of one step of training, in the order in which they ended.
StepLengths = tuple[GroupLengths, ...]
