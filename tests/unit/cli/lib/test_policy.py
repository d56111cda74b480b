"""Checks how a policy is named on the command line: a run, a checkpoint's path, or a model's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.cli.lib.policy import RunVersion, Version, policy_of
from earl.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: runs/t1 with two checkpoints, of which the model is the best, and two models."""
    run = tmp_path / "runs" / "t1"
    for step in (40, 116):
        (run / "checkpoints" / f"step-{step}").mkdir(parents=True)
    for model in (run / "model", tmp_path / "exported", tmp_path / "checkpoints" / "mine"):
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
    (run / "run.json").write_text("{}")
    (run / "checkpoints" / "best").symlink_to(Path("..", "model"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN = Path("runs", "t1")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (None, "default"),
        ("t1", "default"),
        ("runs/t1", "default"),
        ("runs/t1/checkpoints/latest", "latest"),
        ("runs/t1/checkpoints/best", "best"),
        ("runs/t1/checkpoints/step-40", 40),
        ("runs/t1/checkpoints/step-40/", 40),
        ("t1/checkpoints/step-116", 116),
        # A version that is no longer kept is told by what reads it, with those there are.
        ("t1/checkpoints/step-7", 7),
    ],
)
def test_a_run_or_a_path_of_its_checkpoints_is_a_version(folder: Path, text: str | None, version: Version):
    assert policy_of(text, 0, best=False) == RunVersion(RUN, version)


def test_a_run_takes_its_version_from_the_options(folder: Path):
    assert policy_of("t1", 40, best=False) == RunVersion(RUN, 40)
    assert policy_of(None, 0, best=True) == RunVersion(RUN, "best")


def test_a_checkpoint_is_found_by_its_whole_path_and_from_within_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = folder / RUN / "checkpoints" / "step-40"
    assert policy_of(str(whole), 0, best=False) == RunVersion(folder / RUN, 40)
    monkeypatch.chdir(folder / RUN)
    assert policy_of("checkpoints/best", 0, best=False) == RunVersion(Path(), "best")


@pytest.mark.parametrize("text", ["exported", "./exported", "checkpoints/mine"])
def test_a_directory_with_a_models_configuration_is_the_model(folder: Path, text: str):
    assert policy_of(text, 0, best=False) == Path(text)


@pytest.mark.parametrize(
    ("text", "version", "best", "message"),
    [
        ("t1", 3, True, "--version and --best are two ways to choose the version; give one of them"),
        (
            "runs/t1/checkpoints/newest", 0, False,
            "runs/t1/checkpoints/newest is no checkpoint; give one of: latest, best, step-116, step-40",
        ),
        (
            "runs/t1/checkpoints/step-40", 0, True,
            "runs/t1/checkpoints/step-40 is one version of runs/t1, and --version and --best choose another; "
            "leave them out",
        ),
        (
            "runs/t2/checkpoints/latest", 0, False,
            "there is no run 'runs/t2', neither as a directory nor in ./runs; earl ls lists the runs",
        ),
        (
            "empty/checkpoints/latest", 0, False,
            "empty is not a run directory: it has no run.json; give one like runs/demo-seed0",
        ),
        (
            "exported", 3, False,
            "exported is one model, and --version and --best choose among a run's; leave them out",
        ),
        (
            "empty", 0, False,
            "empty is neither a run nor a model; give a run, one of its checkpoints "
            "(runs/NAME/checkpoints/latest), or what earl export wrote",
        ),
    ],
)  # fmt: skip
def test_a_wrong_policy_is_told_with_its_value_and_a_remedy(
    folder: Path, text: str, version: int, best: bool, message: str
):
    with pytest.raises(ConfigError) as raised:
        policy_of(text, version, best=best)
    assert str(raised.value) == message
