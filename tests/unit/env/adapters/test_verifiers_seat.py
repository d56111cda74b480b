"""A seat takes one agent's context, which grows; everything else that verifiers could ask is refused."""

import asyncio

import pytest

from earl.env.adapters.verifiers_seat import VerifiersSeat
from earl.errors import EnvProtocolError

SYSTEM = {"role": "system", "content": "be brief"}
FIRST = [
    SYSTEM,
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "?"}]},
]
CALLS = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}]


async def asked(seat, messages, session="trace", **body):
    """(what the agent is asked, the call that waits for its answer)."""
    call = asyncio.create_task(seat.complete({"messages": messages, **body}, session))
    return await seat.next_call(), call


async def test_what_is_new_is_asked():
    seat = VerifiersSeat("earl-1")
    ask, call = await asked(seat, FIRST, tools=[{"type": "function"}])
    assert [(one["role"], one["text"]) for one in ask.messages] == [("system", "be brief"), ("user", "one?")]
    assert ask.tools == [{"type": "function"}]
    seat.say({"content": "", "tool_calls": CALLS})
    assert (await call)["tool_calls"] == CALLS
    # The harness repeats the reply in words of its own, with None for no text.
    reply = {"role": "assistant", "content": None, "tool_calls": CALLS, "refusal": None}
    tool = {"role": "tool", "tool_call_id": "a", "content": "found"}
    ask, call = await asked(seat, [*FIRST, reply, tool])
    assert ask.messages == [{"role": "tool", "text": "found"}]
    seat.say({"content": "so"})
    assert await call == {"content": "so"}
    assert seat.refusal is None


@pytest.mark.parametrize(
    ("messages", "body", "session", "named"),
    [
        ([*FIRST, {"role": "user", "content": "two"}], {"stream": True}, "trace", "stream"),
        ([*FIRST, {"role": "user", "content": "two"}], {}, "other", "second agent"),
        ([SYSTEM, {"role": "user", "content": "summary"}], {}, "trace", "rewrote"),
        (FIRST, {}, "trace", "rewrote"),
        ([*FIRST, {"role": "assistant", "content": "never said"}], {}, "trace", "rewrote"),
        ([*FIRST, {"role": "user", "content": [{"type": "image_url"}]}], {}, "trace", "image_url"),
    ],
)
async def test_what_is_no_growing_context_is_refused(messages, body, session, named):
    seat = VerifiersSeat("earl-1")
    _, call = await asked(seat, FIRST)
    seat.say({"content": "so"})
    await call
    with pytest.raises(EnvProtocolError, match=named):
        await seat.complete({"messages": messages, **body}, session)
    assert seat.refusal is not None


async def test_two_calls_at_a_time_are_refused():
    seat = VerifiersSeat("earl-1")
    _, call = await asked(seat, FIRST)
    with pytest.raises(EnvProtocolError, match="twice at a time"):
        await seat.complete({"messages": FIRST}, "trace")
    call.cancel()
