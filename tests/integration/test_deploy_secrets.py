"""The scripts that make a fleet's secrets: run again after a rotation, they hand on the tokens of now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from earl.rpc import token_file
from earl.rpc.token_file import Role
from tests.support.containers import DEPLOY, USER

EARL = Path(sys.executable).with_name("earl")


def told(*command: str | Path) -> str:
    environment = {**os.environ, "PATH": f"{EARL.parent}:{os.environ['PATH']}"}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def handed_on(tokens: Path, role: Role) -> str:
    """Returns the content of a role's file: env hosts are dialled with any of theirs, a viewer only sends."""
    found = [entry.token + "\n" for entry in token_file.read(tokens) if entry.role == role]
    return "".join(found if role is Role.ENVIRONMENT else found[-1:])


@pytest.mark.skipif(os.geteuid() != 0, reason="the files are given to the group of the containers")
def test_composes_secrets_follow_a_rotation(tmp_path: Path) -> None:
    script, directory = DEPLOY / "compose" / "secrets.sh", tmp_path / "secrets"
    tokens = directory / "tokens" / "tokens.toml"
    derived = {role: directory / role / f"{role}_token" for role in (Role.ENVIRONMENT, Role.VIEWER)}
    told(script, directory)
    kept = {path: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    assert len(token_file.read(tokens)) == len(Role)
    assert kept[directory / "dashboard.key"] != kept[directory / "server.key"]
    told(EARL, "tokens", "rotate", "--file", tokens)
    open_files = {path: path.open() for path in (tokens, *derived.values())}
    told(script, directory)
    for role, path in derived.items():
        assert path.read_text() == handed_on(tokens, role) != open_files[path].read()
    for file in open_files.values():
        file.close()
    assert {path: path.read_bytes() for path in kept} == kept
    for path in directory.rglob("*"):
        found = path.stat()
        secret = path.name == "ca.key"
        assert found.st_mode & 0o777 == (0o750 if path.is_dir() else 0o600 if secret else 0o640), path
        assert secret or found.st_gid == USER, path
    directories = {path.name for path in directory.rglob("*") if path.is_dir()}
    assert directories == {"tokens", "environment", "viewer"}
    assert all(os.listdir(path.parent) == [path.name] for path in derived.values())


def test_secrets_of_an_overlay_follow_a_rotation(tmp_path: Path) -> None:
    script, tokens = DEPLOY / "k8s" / "secrets.sh", tmp_path / "secrets" / "tokens.toml"
    told(script, tmp_path)
    certificate = (tmp_path / "secrets" / "server.pem").read_bytes()
    # One that was made before the dashboard had its own gets it.
    (tmp_path / "secrets" / "dashboard.pem").unlink()
    (tmp_path / "secrets" / "dashboard.key").unlink()
    told(EARL, "tokens", "rotate", "--keep", "1d", "--file", tokens)
    token_file.write(tokens, [one for one in token_file.read(tokens) if one.role is not Role.VIEWER])
    told(script, tmp_path)
    assert len(token_file.read(tokens)) == 2 * (len(Role) - 1) + 1
    for role in (Role.ENVIRONMENT, Role.VIEWER):
        assert (tmp_path / "secrets" / f"{role}_token").read_text() == handed_on(tokens, role)
    assert (tmp_path / "secrets" / "server.pem").read_bytes() == certificate
    assert (tmp_path / "secrets" / "dashboard.pem").exists()
