"""promtool's word on the rules and the scrape configuration."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support import needs

PROMETHEUS = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


def promtool(*arguments: str) -> str:
    command = [needs.program("promtool", "prometheus"), *arguments]
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False)
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


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["compose", "k8s"])
def test_promtool_takes_the_scrape_jobs_of_fleets(fleet: str, tmp_path: Path):
    told = yaml.safe_load((PROMETHEUS.parent / fleet / "prometheus.yml").read_text())
    for job in told["scrape_configs"]:
        # Debian builds it without what asks Kubernetes.
        found = job.pop("kubernetes_sd_configs", None)
        assert found in (None, [{"role": "pod", "namespaces": {"names": ["earl"]}}])
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(told))
    # Certificates and tokens that they name are elsewhere.
    promtool("check", "config", "--syntax-only", str(tmp_path / "prometheus.yml"))
