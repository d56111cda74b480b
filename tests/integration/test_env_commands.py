"""`earl env` in processes of its own: a new project, several replicas at a gateway, a person's game."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from earl import errors
from earl.cli.env.project import new
from earl.env import Ending, Limits
from tests.contract.test_env_stream_host import playing, serving

LIMITS = Limits(queue_s=20, reset_s=20, step_s=20, episode_s=60)
ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-c", "from earl.cli.env import app; app()")
BOUND_S = 60


async def started(*arguments: str, cwd: Path, stdin: int | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finished(process: asyncio.subprocess.Process, typed: str = "") -> tuple[int | None, str, str]:
    """(exit code, standard output, standard error)."""
    async with asyncio.timeout(BOUND_S):
        out, err = await process.communicate(typed.encode() or None)
    return process.returncode, out.decode(), err.decode()


def project(directory: Path) -> Path:
    new("word-guess", directory)
    return directory / "word-guess"


async def children(pid: int) -> list[int]:
    text = await asyncio.to_thread(Path(f"/proc/{pid}/task/{pid}/children").read_text)
    return [int(child) for child in text.split()]


async def test_replicas_are_watched_listed_played_and_drained(tmp_path: Path):
    root = project(tmp_path)
    async with serving(lease_s=20) as (gateway, address), playing(address) as client:
        to = ("--gateway", address)
        serve = await started(
            "serve", "word_guess:WordGuess", *to, "--replicas", "2", "--name", "r", cwd=root
        )
        assert serve.stdout
        async with asyncio.timeout(BOUND_S):
            assert json.loads(await serve.stdout.readline()) == {"ready": "r", "address": address}
        assert {host.name for host in gateway.pool.hosts.values()} == {"r-0", "r-1"}

        listing, game = await asyncio.gather(
            started("list", *to, "--json", cwd=root),
            started("play", *to, "--seed", "7", cwd=root, stdin=asyncio.subprocess.PIPE),
        )
        (code, out, err), played = await asyncio.gather(
            finished(listing), finished(game, "[3]\n/2\n/nonsense\n[2]\n")
        )
        assert code == 0, err
        (entry,) = json.loads(out)["environments"]
        assert (entry["name"], entry["hosts"], entry["capacity"]) == ("word_guess/guess", 2, 128)
        code, out, err = played
        assert code == 0, err
        assert "0 to 2" in out and "2 to 2" in out and "is not a command" in out
        assert "OK, return 1, illegal 0, win 1" in out

        session = await client.open("word_guess/guess", {}, 7, LIMITS)
        serve.send_signal(signal.SIGTERM)
        outcome = await session.step("[2]")
        assert (outcome.ending, outcome.reward) == (Ending.OK, 1.0)
        code, _, err = await finished(serve)
        assert code == 0, err


async def test_a_crashed_replica_is_started_again(tmp_path: Path):
    root = project(tmp_path)
    async with serving(lease_s=20) as (gateway, address), playing(address) as client:
        serve = await started("serve", "word_guess:WordGuess", "--gateway", address, cwd=root)
        assert serve.stdout
        async with asyncio.timeout(BOUND_S):
            await serve.stdout.readline()
        (host,) = gateway.pool.hosts
        os.kill((await children(serve.pid))[0], signal.SIGKILL)
        while True:
            try:
                session = await client.open("word_guess/guess", {}, 7, LIMITS)
                break
            except errors.EnvHostLost:
                continue  # the gateway had not noticed yet
        assert not (await session.step("[0]")).done
        assert host not in gateway.pool.hosts
        await session.close()
        serve.send_signal(signal.SIGTERM)
        code, _, err = await finished(serve)
        assert code == 0 and "ended with exit code -9: started again" in err


@pytest.mark.slow
async def test_a_new_projects_own_tests_pass(tmp_path: Path):
    root = project(tmp_path)
    tests = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q"),
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    code, out, _ = await finished(tests)
    assert code == 0, out


async def test_mistakes_are_one_line_and_an_exit_code(tmp_path: Path):
    root = project(tmp_path)
    serve = await started("serve", "word_guess:Word", "--gateway", "127.0.0.1:1", cwd=root)
    code, _, err = await finished(serve)
    said = [line for line in err.splitlines() if not line.startswith("{")]
    assert (code, len(said)) == (2, 1) and "has no attribute 'Word'" in said[0]
