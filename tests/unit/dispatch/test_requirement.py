"""`data_plane.require`: what a transport cannot give is refused before anything starts."""

from __future__ import annotations

import pytest

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.requirement import refuse_unmet
from earl.errors import TransportUnavailable


def test_requirements_that_cannot_be_met_are_refused():
    with pytest.raises(TransportUnavailable, match="does not require verbs"):
        refuse_unmet(DataPlaneConfig(require="rdma", transport="ucx"))
    with pytest.raises(TransportUnavailable, match="memory"):
        refuse_unmet(DataPlaneConfig(require="rdma", transport="shm"))
    for transport in ("ucx", "nixl"):
        with pytest.raises(TransportUnavailable):
            refuse_unmet(DataPlaneConfig(require="shm", transport=transport))
    refuse_unmet(DataPlaneConfig(require="shm"))
