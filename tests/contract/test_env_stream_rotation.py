"""Streams of a gateway whose token file changes: what goes on, and what ends."""

import asyncio
from functools import partial

import pytest

from earl import errors
from earl.env import Ending, GatewayClient
from earl.rpc import server, token_file
from earl.rpc.token_file import Role, make
from earl.rpc.tokens import SecretFile, TokenFile
from tests.contract.test_env_stream_host import LIMITS, Counting, hosting, serving

BOUND_S = 20


@pytest.fixture(autouse=True)
def looked_often(monkeypatch):
    monkeypatch.setattr(server, "TOKEN_CHECK_S", 0.02)


async def until(fact):
    """Waits for `fact()`, bounded."""
    async with asyncio.timeout(BOUND_S):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_episode_outlives_the_rotation_of_its_hosts_token(tmp_path):
    path, mounted = tmp_path / "tokens.toml", tmp_path / "token"
    worker, former, latter = make(Role.WORKER), make(Role.ENVIRONMENT), make(Role.ENVIRONMENT)
    token_file.write(path, [worker, former])
    mounted.write_text(former.token)
    async with (
        serving(token=TokenFile(path), lease_s=20) as (gateway, address),
        hosting(address, Counting, token=SecretFile(mounted)),
    ):
        client = GatewayClient(address, token=worker.token)
        session = await client.open("test/counting", {}, 1, LIMITS)
        assert (await session.step("a")).observation.text == "1"
        mounted.write_text(latter.token)
        token_file.write(path, [worker, latter])
        (host,) = gateway.pool.hosts.values()
        await until(lambda: host.epoch == 2 and host.attached)
        last = await session.step("end")
        assert (last.observation.text, last.ending) == ("2", Ending.OK)
        await client.close()


async def test_a_host_whose_token_is_revoked_ends_and_says_why(tmp_path):
    path = tmp_path / "tokens.toml"
    worker, host = make(Role.WORKER), make(Role.ENVIRONMENT)
    token_file.write(path, [worker, host])
    async with serving(token=TokenFile(path), lease_s=20) as (_, address):
        with pytest.raises(errors.Unauthenticated, match="was revoked"):
            async with hosting(address, Counting, token=host.token) as (_, task):
                token_file.write(path, [worker])
                await asyncio.wait({task}, timeout=BOUND_S)


async def test_of_a_player_whose_token_is_rotated_the_next_episode_is_played(tmp_path):
    path = tmp_path / "tokens.toml"
    former, latter, host = make(Role.WORKER), make(Role.WORKER), make(Role.ENVIRONMENT)
    token_file.write(path, [former, host])
    async with (
        serving(token=TokenFile(path), lease_s=20) as (_, address),
        hosting(address, Counting, token=host.token),
    ):
        client = GatewayClient(address, token=partial(TokenFile(path).send, Role.WORKER))
        session = await client.open("test/counting", {}, 1, LIMITS)
        step = asyncio.create_task(session.step("wait"))
        await asyncio.wait_for(Counting.entered.wait(), BOUND_S)
        token_file.write(path, [latter, host])
        with pytest.raises(errors.Unauthenticated, match="was revoked"):
            await asyncio.wait_for(step, BOUND_S)
        Counting.release.set()
        again = await client.open("test/counting", {}, 2, LIMITS)
        assert (await again.step("end")).ending is Ending.OK
        await client.close()
