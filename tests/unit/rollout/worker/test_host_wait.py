"""Checks a worker before a host serves the run's environment: it waits, says so, and gives up typed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from types import SimpleNamespace

import pytest

from earl.env.session import OfferedTools
from earl.errors import ServiceUnavailable, UnknownEnvironment
from services.rollout.worker import host_wait
from services.rollout.worker.host_wait import HostWait
from tests.support.clock import stopped_clock

NAME = "pettingzoo/connect_four"


class Gateway:
    """Answers with these in turn, the last one again and again; an error is raised."""

    address = "127.0.0.1:7000"

    def __init__(self, *answers: Collection[str] | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0
        self.seats: dict[str, int] = {}

    async def tools(self, deadline_s: float = 0.0) -> dict[str, OfferedTools]:
        return {NAME: OfferedTools(("search", "read"), True), "other/game": OfferedTools((), False)}

    async def environments(self, deadline_s: float = 0.0) -> Collection[str]:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def offered_seats(self, deadline_s: float = 0.0) -> dict[str, int]:
        return self.seats


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_wait, "POLL_S", 0.001)


async def test_a_host_that_is_there_is_not_waited_for() -> None:
    gateway = Gateway([NAME])
    wait = HostWait(gateway, {NAME: 60.0})
    await wait.served()
    assert (gateway.asked, wait.seconds) == (1, 0.0)


@pytest.mark.parametrize(
    ("name", "tools", "message"),
    [
        (NAME, ["read", "write"], rf"{NAME} has no tool 'write'; give some of search, read$"),
        (
            "other/game",
            ["read"],
            r"tools = .* of environment other/game: its host cannot leave tools out",
        ),
    ],
)
async def test_a_run_whose_tools_there_are_not_does_not_begin(
    name: str, tools: list[str], message: str
) -> None:
    with pytest.raises(UnknownEnvironment, match=message) as raised:
        await HostWait(Gateway([name]), {name: 60.0}, tools={name: tools}).served()
    assert "\n" not in str(raised.value)


async def test_a_run_whose_tools_there_are_begins() -> None:
    await HostWait(Gateway([NAME]), {NAME: 60.0}, tools={NAME: ["read"]}).served()


async def test_it_waits_for_a_gateway_and_a_host_that_come_late(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway(ServiceUnavailable("no gateway"), (), ["other/game"], [NAME, "other/game"])
    wait = HostWait(gateway, {NAME: 60.0})
    await wait.served()
    assert gateway.asked == 4 and wait.seconds == 0.0
    [record] = caplog.records
    assert f"no host serves '{NAME}' yet, no host is connected" in record.message
    assert "earl env serve MODULE:CLASS --gateway 127.0.0.1:7000 within 60 s" in record.message


@pytest.fixture
async def advance(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[float], None]]:
    """Moves the clock of the loop and of the wait, which stands still otherwise."""
    with stopped_clock() as move:
        clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
        monkeypatch.setattr(host_wait, "time", clock)
        yield move


async def has_asked(gateway: Gateway, times: int) -> None:
    while gateway.asked < times:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_how_long_it_has_waited_is_known_while_it_waits(advance: Callable[[float], None]) -> None:
    gateway = Gateway(())
    wait = HostWait(gateway, {NAME: 60.0})
    waiting = asyncio.create_task(wait.served())
    await has_asked(gateway, 1)
    advance(5.0)
    assert wait.seconds == pytest.approx(5.0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert wait.seconds == 0.0


async def test_it_gives_up_after_its_bound_and_names_what_is_served(
    advance: Callable[[float], None],
) -> None:
    gateway = Gateway(["other/game"])
    waiting = asyncio.create_task(HostWait(gateway, {NAME: 60.0}).served())
    await has_asked(gateway, 1)
    advance(59.0)
    await has_asked(gateway, 2)
    assert not waiting.done()
    advance(1.0)
    with pytest.raises(UnknownEnvironment, match=r"within 60 s; hosts serve other/game; start one with"):
        await waiting


@pytest.mark.parametrize(("offered", "refused"), [(2, False), (1, True)])
async def test_seats_that_no_host_offers_end_the_run(offered: int, refused: bool) -> None:
    gateway = Gateway([NAME])
    gateway.seats = {NAME: offered}
    wait = HostWait(gateway, {NAME: 60.0}, {NAME: 2})
    if not refused:
        await wait.served()
        return
    with pytest.raises(UnknownEnvironment, match=r"environment.seats = 2 of .*, which offers 1") as caught:
        await wait.served()
    assert caught.value.remedy == "set seats = 1, or serve an environment that offers 2 seats"
