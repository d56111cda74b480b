"""Checks what an OpenEnv server may say. A real server is in tests/envs/test_openenv.py."""

import json

import pytest

from earl.env import Observation
from earl.errors import ConfigError, EnvBackendLost, EnvironmentFailure, EnvProtocolError

pytest.importorskip("websockets", reason="the package websockets is not installed")

from websockets.asyncio.server import serve  # pyright: ignore[reportMissingImports]

from earl.env.adapters.openenv import MAX_MESSAGE_BYTES, BadAction, OpenEnv

FIRST = {
    "type": "observation",
    "data": {"observation": {"text": "go", "n": 1}, "reward": None, "done": False},
}


def said(**data):
    return {
        "type": "observation",
        "data": {"observation": {"text": "on"}, "reward": 0.5, "done": False} | data,
    }


def seen(result):
    assert isinstance(result.observation, Observation)
    return result.observation.text


class Scripted:
    """A server that gives its answers one after the other, to whatever it is asked.

    An answer that is a list is several messages. greeting: messages that it sends before it is asked.
    """

    def __init__(self, *answers, greeting=()):
        self.answers = [*answers]
        self.greeting = greeting
        self.asked = []

    async def handle(self, connection):
        for message in self.greeting:
            await connection.send(json.dumps(message))
        async for message in connection:
            self.asked.append(json.loads(message))
            if self.asked[-1]["type"] == "close" or not self.answers:
                return
            answer = self.answers.pop(0)
            for said in answer if isinstance(answer, list) else [answer]:
                await connection.send(said if isinstance(said, str) else json.dumps(said))

    async def __aenter__(self):
        self.server = await serve(self.handle, "127.0.0.1", 0).__aenter__()
        port = self.server.sockets[0].getsockname()[1]
        bounds = {"open_s": 5.0, "answer_s": 5.0, "max_steps": 2, "text_field": "text"}
        return type("Played", (OpenEnv,), {"url": f"http://127.0.0.1:{port}/", **bounds})()

    async def __aexit__(self, *exc):
        self.server.close()
        await self.server.wait_closed()


async def test_an_episode_says_what_it_should():
    scripted = Scripted(FIRST, said(), said(reward=True, done=True))
    async with scripted as played:
        assert (await played.reset(7, {"level": 2})).text == "go"
        result = await played.step('I say {"number": 3}.')
        assert (seen(result), result.reward, result.done, result.metrics) == ("on", 0.5, False, {})
        result = await played.step("{}")
        assert (result.reward, result.done, result.truncated) == (1.0, True, False)
        assert result.metrics == {"steps": 2, "invalid": 0, "return": 1.5}
        await played.close()
    assert scripted.asked == [
        {"type": "reset", "data": {"seed": 7, "level": 2}},
        {"type": "step", "data": {"number": 3}},
        {"type": "step", "data": {}},
        {"type": "close"},
    ]


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ("{", "Expecting"),
        ("[]", "TypeError"),
        ({"type": "state", "data": {}}, "'state'"),
        ({"type": "observation", "data": 3}, "data"),
        (said(observation="text"), "str, not an object"),
        (said(reward="1"), "'1'"),
        ('{"type": "observation", "data": {"observation": {}, "reward": NaN, "done": true}}', "nan"),
        (said(reward=None, done=True), "None"),
        (said(done="yes"), "'yes'"),
        (said(observation={"words": "on"}), "no 'text'; it has words"),
    ],
)
async def test_what_it_may_not_say(answer, named):
    async with Scripted(FIRST, answer) as played:
        await played.reset(1, {})
        with pytest.raises(EnvProtocolError, match=named):
            await played.step("{}")
        await played.close()


@pytest.mark.parametrize("more", [1, 100])
async def test_a_message_that_nobody_asked_for_answers_nothing(more):
    unasked = said(reward=9.0, done=True)
    scripted = Scripted(FIRST, [said(), *[unasked] * more], said(reward=0.25))
    async with scripted as played:
        await played.reset(1, {})
        assert (await played.step("{}")).reward == 0.5
        with pytest.raises(EnvProtocolError, match=r"nobody asked for, before a step: .*observation"):
            await played.step("{}")
        await played.close()
    assert [asked["type"] for asked in scripted.asked] == ["reset", "step", "close"]


async def test_a_first_message_that_nobody_asked_for_is_no_reset():
    async with Scripted(FIRST, greeting=[said()]) as played:
        with pytest.raises(EnvProtocolError, match="nobody asked for, before a reset"):
            await played.reset(1, {})
        await played.close()
    full = {"type": "error", "data": {"message": "full", "code": "FACTORY_ERROR"}}
    async with Scripted(FIRST, greeting=[full]) as played:
        with pytest.raises(EnvironmentFailure, match=r"reset: full \(FACTORY_ERROR\)"):
            await played.reset(1, {})
        await played.close()


async def test_an_answer_that_is_too_large_is_the_environments():
    large = json.dumps(said(observation={"text": "x" * (6 << 20)}))
    async with Scripted(FIRST, large) as played:
        await played.reset(1, {})
        with pytest.raises(EnvProtocolError, match="too large") as caught:
            await played.step("{}")
        assert str(len(large)) in caught.value.message and str(MAX_MESSAGE_BYTES) in caught.value.message
        await played.close()
    async with Scripted(large) as played:
        with pytest.raises(EnvProtocolError, match="answered a reset with a message that is too large"):
            await played.reset(1, {})
        await played.close()


async def test_its_failures_are_told_apart():
    failed = {"type": "error", "data": {"message": "oh", "code": "EXECUTION_ERROR"}}
    wrong = {
        "message": "Invalid message",
        "code": "VALIDATION_ERROR",
        "errors": [{"loc": ["n"], "msg": "no"}],
    }
    async with Scripted(FIRST, {"type": "error", "data": wrong}, failed) as played:
        await played.reset(1, {})
        result = await played.step("{}")
        assert seen(result) == "That is no action: Invalid message: n: no (VALIDATION_ERROR)"
        with pytest.raises(EnvironmentFailure, match="oh") as caught:
            await played.step("{}")
        assert type(caught.value) is EnvironmentFailure
        await played.close()
    async with Scripted(FIRST) as played:
        await played.reset(1, {})
        with pytest.raises(EnvBackendLost, match="was lost in a step"):
            await played.step("{}")
        await played.close()
    with pytest.raises(EnvBackendLost, match="no OpenEnv server"):
        await played.reset(1, {})


async def test_bad_actions_are_told_and_count_as_steps():
    async with Scripted(FIRST) as played:
        await played.reset(1, {})
        assert not (await played.step("nothing")).truncated
        result = await played.step("nothing")
        assert (result.truncated, result.reward, result.metrics["invalid"]) == (True, 0.0, 2)
        await played.close()
    for text in ("", "}{", "{1: 2}", '{"a": NaN}', "{" * 100_000 + "}"):
        with pytest.raises(BadAction):
            played.action_of(text)


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://a", "ws://"])
async def test_a_bad_url_is_named(url):
    with pytest.raises(ConfigError, match=f"url '{url}'"):
        await type("Played", (OpenEnv,), {"url": url})().reset(1, {})
