"""promtool's word on the rules and the scrape configuration."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROMETHEUS = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
REMEDY = "promtool is not installed: apt-get install --no-install-recommends prometheus"


def promtool(*arguments: str) -> str:
    assert shutil.which("promtool"), REMEDY
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_promtool_takes_configuration_and_rules():
    promtool("check", "config", "prometheus.yml")
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml")
    assert "SUCCESS" in said


@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_only_then():
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml")
