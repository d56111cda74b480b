"""The runs of a folder: by name alone, watched while somebody looks, and where their files differ."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from earl.config.run import RunConfig
from earl.dashboard import runs
from earl.dashboard.runs import RunFolder, differences
from earl.errors import ConfigError
from tests.support.dashboard import Silent
from tests.support.recorded import recorded


def folder_of(directory: Path, *names: str) -> RunFolder:
    for name in names:
        (directory / name).mkdir()
        recorded(directory / name, steps=2)
    (directory / "no-run").mkdir()
    return RunFolder(directory, lambda run, config: Silent())


async def test_a_run_is_found_by_its_name_and_nothing_else_is(tmp_path: Path):
    folder = folder_of(tmp_path, "a", "b")
    try:
        assert sorted(folder.names()) == ["a", "b"]
        view = await folder.view("a")
        assert await folder.view("a") is view and view.directory == tmp_path / "a"
        assert "reward_mean" in await view.metric_names()
        curves = await view.series(["reward_mean", "nope"], "step")
        assert len(curves["reward_mean"]) == 2 and curves["nope"] == []
        for name in ("c", "no-run", "..", "a/../b", ""):
            with pytest.raises(ConfigError, match="has no run"):
                await folder.view(name)
    finally:
        await folder.close()


async def test_views_that_nobody_follows_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "OPEN", 2)
    folder = folder_of(tmp_path, "a", "b", "c")
    try:
        first = await folder.view("a")
        followed = first.feed.follow("")
        await anext(followed)
        second = await folder.view("b")
        await folder.view("c")
        assert await folder.view("a") is first  # somebody follows it
        assert await folder.view("b") is not second
        await followed.aclose()
    finally:
        await folder.close()


class Slow(Silent):
    """Services that take a while to close. closing: how many do."""

    closing = 0
    closed = 0

    async def close(self) -> None:
        Slow.closing += 1
        for _ in range(20):
            await asyncio.sleep(0)
        Slow.closed += 1


async def test_a_request_in_the_middle_of_the_end_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Slow, "closing", 0)
    monkeypatch.setattr(Slow, "closed", 0)
    folder_of(tmp_path, "a", "b", "c")
    folder = RunFolder(tmp_path, lambda run, config: Slow())
    for name in ("a", "b"):
        await folder.view(name)
    ending = asyncio.create_task(folder.close())
    while not Slow.closing:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for name in ("a", "b"):  # one closes, the other will: their files can still be read
        assert len((await (await folder.view(name)).series(["reward_mean"], "step"))["reward_mean"]) == 2
    with pytest.raises(ConfigError, match="is closing"):
        await folder.view("c")
    await ending
    assert Slow.closed == 2
    assert (await folder.view("a")).directory == tmp_path / "a"


async def test_requests_for_one_run_at_once_share_its_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "OPEN", 1)
    folder_of(tmp_path, "a", "b")
    folder = RunFolder(tmp_path, lambda run, config: Slow())
    try:
        await folder.view("a")
        first, second = await asyncio.gather(folder.view("b"), folder.view("b"))
        assert first is second
    finally:
        await folder.close()


def test_keys_that_differ_are_named_with_every_value():
    first = RunConfig.model_validate({"name": "a", "environment": {"name": "e"}})
    gateway = first.gateway.model_copy(update={"bind": "127.0.0.1:9"})
    second = first.model_copy(update={"name": "b", "seed": 7, "gateway": gateway})
    assert differences({"a": first, "b": second}) == [{"key": "seed", "values": {"a": 0, "b": 7}}]
    assert differences({"a": first, "b": first.model_copy(update={"name": "b"})}) == []
