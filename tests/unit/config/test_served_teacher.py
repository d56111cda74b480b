"""Run files whose teacher another server has: what they start, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.check import cross_check
from earl.config.run import RunConfig
from earl.errors import ConfigError, IllegalParallelism, InsecureCall
from earl.models.spec import spec_of_scratch
from earl.stack.placement import place
from earl.stack.plan import plan
from earl.stack.thread_counts import with_threads
from services.scheduler.memory.node import node_plan
from tests.support.runs import tictactoe

URL = "http://127.0.0.1:8000/v1"


def run_of(directory: Path, keys: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    return tictactoe(directory, teacher={"url": URL, **(keys or {})}, **sections)


def test_it_has_a_process_and_no_devices_threads_or_weights(tmp_path: Path):
    config = run_of(tmp_path)
    cross_check(config)
    assert list(config.frozen_stages) == list(config.column_stages) == ["teacher"]
    assert not config.frozen_models
    specs = {each.name: each for each in plan(config, Path("run.json"))}
    assert specs["teacher"].arguments[:2] == ("-m", "services.trainer.teacher")
    assert specs["teacher"].may_end_early
    assert [name for name, spec in specs.items() if spec.calls_teacher] == ["model", "teacher"]
    placement = place(config, 4)
    assert "teacher" not in placement.devices
    counted = with_threads(config, 0, 14.0)
    assert counted.trainer.threads == with_threads(tictactoe(tmp_path), 0, 14.0).trainer.threads
    uses = node_plan(config, spec_of_scratch(config.model.scratch), placement, 1 << 40).uses
    assert "teacher" not in {use.process for use in uses}
    # A launch settles keys, and its run.json is read again.
    cross_check(RunConfig.model_validate_json(counted.model_dump_json()))
    local = tictactoe(tmp_path, teacher={"path": "somewhere"})
    assert not any(spec.calls_teacher for spec in plan(local, Path("run.json")))


@pytest.mark.parametrize(
    ("keys", "sections", "message"),
    [
        ({"path": "large"}, {}, r"teacher\.url = '.*' with teacher\.path = 'large'"),
        ({"dp": 2}, {}, r"teacher\.dp = 2 with teacher\.url = .* the server computes"),
        ({"tp": 2}, {}, r"teacher\.tp = 2 with teacher\.url"),
        ({"device": "cuda"}, {}, r"teacher\.device = 'cuda' with teacher\.url"),
        ({"devices": "0"}, {}, r"teacher\.devices = '0' with teacher\.url"),
        ({"episodes": 9}, {}, r"teacher\.episodes = 9 with teacher\.url.*warmup\.episodes"),
        ({}, {"scheduler": {"temperature": 0.7}}, r"scheduler\.temperature = 0\.7 with teacher\.url"),
        (
            {}, {"deterministic": True, "scheduler": {"selector": "static"}},
            r"deterministic = true with teacher\.url",
        ),
        ({}, {"deterministic": "kernels"}, r'deterministic = "kernels" with teacher\.url'),
        ({}, {"stack": {"pool_devices": 3}}, r"stack\.pool_devices = 3 with teacher\.url"),
        ({}, {"replay": {"reuse": 1}}, r"replay\.reuse = 1 with teacher\.url"),
        ({"url": "127.0.0.1:8000"}, {}, "is no http:// or https:// URL"),
        ({"url": "ftp://127.0.0.1/v1"}, {}, "is no http:// or https:// URL"),
        ({"url": "http://127.0.0.1/v1?key=1"}, {}, "URL without a query"),
        ({"url": "http://127.0.0.1:x/v1"}, {}, "is no URL: "),
        ({"url": "http://teacher.example/v1"}, {}, "off this machine without TLS"),
        ({"wean": True}, {"environment": {"reward_range": [-1, 1]}}, "and nothing to measure it by"),
        ({"arena_bytes": 100}, {}, r"teacher\.arena_bytes = 100 cannot hold"),
        ({"url": "", "served_model": "x"}, {}, r"teacher\.served_model = x without teacher\.url"),
        ({"url": "", "requests": 3}, {}, r"teacher\.requests = 3 without teacher\.url"),
        ({"url": "", "until": 3}, {}, r"teacher\.until = 3 without teacher\.path or teacher\.url"),
    ],
)  # fmt: skip
def test_what_a_served_teacher_cannot_be_is_refused_by_its_key(
    tmp_path: Path, keys: dict[str, Any], sections: dict[str, Any], message: str
):
    config = run_of(tmp_path, keys)
    changes = {
        name: getattr(config, name).model_copy(update=value) if isinstance(value, dict) else value
        for name, value in sections.items()
    }
    with pytest.raises((ConfigError, IllegalParallelism), match=message):
        cross_check(config.model_copy(update=changes))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_may_be_weaned_and_need_not_be_on_this_machine(tmp_path: Path, temperature: float):
    keys = {"url": "https://teacher.example/v1", "wean": True, "score": 0.5, "until": 9}
    environment, scheduler = {"reward_range": [-1, 1]}, {"temperature": temperature}
    cross_check(run_of(tmp_path, keys, environment=environment, scheduler=scheduler))
    with pytest.raises(InsecureCall):
        cross_check(run_of(tmp_path, {"url": "http://10.0.0.7:8000/v1"}))
    trusted = {"trusted_network": True}
    cross_check(run_of(tmp_path, {"url": "http://10.0.0.7:8000/v1"}, data_plane=trusted))


def test_a_password_in_the_url_is_refused_and_not_shown(tmp_path: Path):
    with pytest.raises(ConfigError, match="EARL_TEACHER_TOKEN") as refused:
        cross_check(run_of(tmp_path, {"url": "http://me:hidden@127.0.0.1/v1"}))
    assert "hidden" not in str(refused.value)
