"""A run with tokens by role and TLS, as a fleet has it: it trains, each process has its own token and no
other, and nothing that is secret stands where others can read it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from earl.rpc import token_file
from earl.rpc.token_file import Role, make
from earl.rpc.tokens import token_id
from tests.support.certificates import certified
from tests.support.launched import Launched, launch_in

VARIABLES = ("EARL_TOKEN", "EARL_TOKENS", "EARL_TOKEN_FILE")


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    """Its processes are forked: each shows the environment that it was started with, and no other."""
    with launch_in(tmp_path, forked=True) as run:
        yield run


def environments(run: Launched) -> dict[str, dict[str, str]]:
    """Environments of every live process of the run, by its command line."""
    found = {}
    for pid, command in run.processes().items():
        try:
            found[command] = psutil.Process(pid).environ()
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_run_with_tokens_and_tls(launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tls, path = certified(tmp_path / "tls"), tmp_path / "tokens.toml"
    tokens = {role: make(role) for role in Role}
    token_file.write(path, tokens.values())
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EARL_TOKENS", str(path))
    monkeypatch.setenv("EARL_TLS_CERT", str(tls.certificate))
    monkeypatch.setenv("EARL_TLS_KEY", str(tls.key))
    monkeypatch.setenv("EARL_TLS_CA", str(tls.authority))
    # Processes are looked at while the run works.
    launched.start(scheduler__steps="24")
    launched.until(r"version [1-9]")
    seen = environments(launched)
    hosts = [one for command, one in seen.items() if "earl.env.host" in command]
    services = [one for command, one in seen.items() if "-m services." in command]
    assert hosts and len(services) >= 4
    secrets = [one.token for one in tokens.values()]
    # What services are told on standard input, their engines have in their environments.
    engines = [one for command, one in seen.items() if "engines.process" in command]
    assert engines
    for one in hosts:
        assert not one["EARL_REDIS_URL"]
        assert [one.get(name, "") for name in VARIABLES] == [tokens[Role.ENVIRONMENT].token, "", ""]
    for one in services:
        assert [one.get(name, "") for name in VARIABLES] == ["", str(path), ""]
    passwords = {one["EARL_REDIS_URL"].partition(":")[2].partition("@")[0].strip("/:") for one in engines}
    for command, one in seen.items():
        if "earl.stack.valkey" in command or "valkey-server" in command:
            assert not any(one.get(name) for name in VARIABLES)
        assert not any(secret in command for secret in (*secrets, *passwords)), command
    code, _ = launched.finish()
    assert code == 0, launched.said
    launched.assert_nothing_left()
    lines = [json.loads(line) for line in (launched.run_directory / "audit.jsonl").read_text().splitlines()]
    joined = {one["token"] for one in lines if one["what"].endswith("/Join") and one["outcome"] == "ok"}
    attached = {one["token"] for one in lines if one["what"].endswith("/Attach")}
    assert joined == {token_id(tokens[Role.WORKER].token)}
    assert attached == {token_id(tokens[Role.ENVIRONMENT].token)}
    assert all(passwords)
    for directory, _, names in os.walk(launched.run_directory):
        for name in names:
            raw = (Path(directory) / name).read_bytes()
            for secret in (*secrets, *passwords):
                assert secret.encode() not in raw, f"{name} has a secret"
