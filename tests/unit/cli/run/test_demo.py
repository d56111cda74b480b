"""The demo's configuration."""

from __future__ import annotations

from earl.cli.run.demo import demo_config
from earl.stack.plan import profiles


def test_the_demo_takes_no_profile_whatever_it_is_given() -> None:
    config = demo_config(0, [("rollout.engines", "2"), ("trainer.ranks", "2")])
    assert config.rollout.engines == 2 and not profiles(config)
