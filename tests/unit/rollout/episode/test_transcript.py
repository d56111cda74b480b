"""Conversations for the report: bounded, and made of what was sampled."""

from earl.env.base import Ending
from earl.transcript import TOKENS, TURNS
from earl.v1 import scheduler_pb2
from services.rollout.episode.columns import TokenColumns
from services.rollout.episode.transcript import conversation
from services.rollout.worker.ticket import EpisodeOutcome
from services.rollout.worker.ticket_codec import decode_ticket, encode_result
from services.scheduler.api.codec_transcripts import decode_transcript


def decode(ids):
    return "".join(map(chr, ids))


def played(*turns):
    """(columns, observed) of turns (observation, action); an action of None is still to come."""
    columns = TokenColumns()
    for observation, action in turns:
        columns.observe(list(map(ord, observation)), 1)
        if action:
            columns.act(list(map(ord, action)), [-0.1] * len(action), [1] * len(action))
    return columns, [("user", observation) for observation, _ in turns]


def test_turns_alternate_and_count_their_tokens():
    columns, observed = played(("ab", "xyz"), ("c", "w"))
    shown = conversation("Be brief.", observed, columns, decode, "So: ")
    assert [(turn.role, turn.text, turn.tokens) for turn in shown] == [
        ("system", "Be brief.", 0),
        ("user", "ab", 2),
        ("assistant", "So: xyz", 3),
        ("user", "c", 1),
        ("assistant", "So: w", 1),
    ]
    assert [(one.id, one.text, one.version) for one in shown[2].sampled] == [
        (120, "x", 1), (121, "y", 1), (122, "z", 1),
    ]  # fmt: skip
    assert shown[1].sampled == () and abs(shown[4].sampled[0].logprob + 0.1) < 1e-6


def test_tokens_are_what_they_add_to_those_before_and_bounded():
    def bytewise(ids):
        return bytes(ids).decode("utf-8", "replace")

    data = "né€x".encode()
    columns = TokenColumns()
    columns.observe([1], 1)
    columns.act(list(data), [-0.5] * len(data), [2] * len(data))
    (_, turn) = conversation("", [("user", "?")], columns, bytewise)
    assert [one.text for one in turn.sampled] == ["n", "", "é", "", "", "€", "x"]
    columns = TokenColumns()
    for _ in range(2):
        columns.observe([1], 1)
        columns.act([65] * 800, [-0.5] * 800, [2] * 800)
    shown = conversation("", [("user", "?")] * 2, columns, bytewise)
    assert [len(turn.sampled) for turn in shown] == [0, 800, 0, TOKENS - 800]
    assert shown[3].tokens == 800


def test_an_episode_that_ended_early_shows_what_there_was():
    columns, observed = played(("ab", "x"), ("c", None))
    shown = conversation("", [*observed, ("tool", "never read")], columns, decode)
    assert [turn.text for turn in shown] == ["ab", "x", "c"]
    assert conversation("", [], TokenColumns(), decode) == []


def test_a_result_carries_its_transcript():
    columns, observed = played(("ab", "x"))
    outcome = EpisodeOutcome(Ending.OK, 1.0, columns, transcript=conversation("", observed, columns, decode))
    asked = scheduler_pb2.Ticket(ticket_id=1, attempt=1, environment="e", transcript=True)
    ticket = decode_ticket(asked)
    assert ticket.transcript and not decode_ticket(scheduler_pb2.Ticket()).transcript
    result = encode_result(ticket, outcome, "")
    assert decode_transcript(result) == tuple(outcome.transcript)
    sent = result.transcript
    assert [(turn.role, turn.text, turn.tokens) for turn in sent] == [
        ("user", "ab", 2),
        ("assistant", "x", 1),
    ]
    assert [(one.id, one.text, one.version) for one in sent[1].sampled] == [(120, "x", 1)]


def test_long_episodes_keep_both_ends():
    columns, observed = played(*((str(number), "x") for number in range(40)))
    shown = conversation("s", observed, columns, decode)
    assert len(shown) == TURNS
    assert (shown[0].text, shown[1].text, shown[-2].text) == ("s", "0", "39")
