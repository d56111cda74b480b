"""Parts of the dashboard under a test's control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from earl.config.run import RunConfig
from earl.dashboard.codec_services import Services
from earl.errors import ServiceUnavailable
from earl.stack.status import RunStatus


def config_of(directory: Path) -> RunConfig:
    return RunConfig.model_validate_json((directory / "run.json").read_bytes())


class Silent(Services):
    """Of a run whose services are gone."""

    def __init__(self) -> None:
        self.scheduler = "127.0.0.1:1"

    async def status(self, deadline_s: float) -> RunStatus:
        raise ServiceUnavailable("GetStatus at 127.0.0.1:1 cannot be reached", "start it")

    async def gateway(self, deadline_s: float) -> dict[str, Any]:
        raise ServiceUnavailable("ListEnvironments at 127.0.0.1:2 cannot be reached", "start it")

    async def tickets(self, deadline_s: float) -> dict[str, Any]:
        raise ServiceUnavailable("ListTickets at 127.0.0.1:1 cannot be reached", "start it")

    async def close(self) -> None:
        pass


class Says(Silent):
    """Of a run that goes on and says this."""

    def __init__(self, status: RunStatus) -> None:
        super().__init__()
        self.said: RunStatus | None = status

    async def status(self, deadline_s: float) -> RunStatus:
        if self.said is None:
            return await super().status(deadline_s)
        return self.said

    async def gateway(self, deadline_s: float) -> dict[str, Any]:
        return {"environments": [], "rows": []}

    async def tickets(self, deadline_s: float) -> dict[str, Any]:
        return {"rows": []}
