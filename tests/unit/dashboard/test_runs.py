"""The runs of a folder: by name alone, watched while somebody looks, and where their files differ."""

from __future__ import annotations

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


def test_keys_that_differ_are_named_with_every_value():
    first = RunConfig.model_validate({"name": "a", "environment": {"name": "e"}})
    gateway = first.gateway.model_copy(update={"bind": "127.0.0.1:9"})
    second = first.model_copy(update={"name": "b", "seed": 7, "gateway": gateway})
    assert differences({"a": first, "b": second}) == [{"key": "seed", "values": {"a": 0, "b": 7}}]
    assert differences({"a": first, "b": first.model_copy(update={"name": "b"})}) == []
