"""The agent loop against scripted policies and environments: every ending, exact tokens."""

import asyncio
import json
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs

from earl.config.sampling_filters import SamplingFilters
from earl.env.base import Ending, Limits, Observation
from earl.errors import ContextTooLong, DeadlineExceeded, EngineLost, EnvHostLost, EnvironmentFailure
from services.rollout.engines.contract.engine import Generation
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.episode.tokenizer_cache import TokenizerCache
from services.rollout.worker.actions import AgentBounds
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.ticket import EpisodeTicket

TICKET = EpisodeTicket(
    ticket_id=7,
    attempt=2,
    fence=10,
    publish=True,
    scripted=False,
    environment="count",
    label="count",
    task_json='{"n": 3}',
    env_seed=11,
    sample_seed=12,
    min_version=1,
    temperature=0.5,
    episode_s=30.0,
    lease_s=30.0,
    max_turns=9,
)


class Letters:
    """Token ids are code points: "." ends an action, "!" stands before what a tool says and "~" after an
    action that did not end."""

    system = "Be brief."
    opening = ""

    def encode_observation(self, text, first, role="user", after=None):
        head = [1] if first else [] if after == ord(".") else [ord("~")]
        return [*head, *map(ord, "!" + text if role == "tool" else text)]

    def encode_action(self, text):
        return list(map(ord, text))

    def decode(self, ids):
        return "".join(map(chr, ids))


@dataclass
class Says:
    """A policy that says what it is told to, token by token, and stops at "."."""

    answers: list
    version: int = 1
    requests: list = field(default_factory=list)
    released: list = field(default_factory=list)

    async def wait_version(self, version):
        assert self.version < version
        await asyncio.Event().wait()

    async def generate(self, request):
        self.requests.append(as_made(request))
        answer = self.answers[(len(self.requests) - 1) % len(self.answers)]
        if isinstance(answer, Exception):
            raise answer
        ids = list(map(ord, answer))[: request.max_new_tokens]
        finish = "stop" if ids[-1] == ord(".") else "length"
        return Generation(
            request_id=request.request_id,
            ids=ids,
            logprobs=[-0.5] * len(ids),
            versions=[self.version] * len(ids),
            finish=finish,
        )

    async def release(self, session):
        self.released.append(session)


def as_made(request):
    """The request as it was when it was made: the loop goes on writing to its list."""
    return structs.replace(request, ids=[*request.ids])


@dataclass
class Result:
    observation: Observation
    reward: float = 0.0
    done: bool = False
    ending: Ending = Ending.OK
    message: str = ""
    metrics: dict = field(default_factory=dict)
    seat_rewards: tuple = ()
    seat_metrics: tuple = ()


class Session:
    def __init__(self, results):
        self.observation = Observation("ab", legal_actions=("x.", "y."))
        self.results = iter(results)
        self.actions = []
        self.stepped = asyncio.Event()
        self.closed = False

    async def step(self, action):
        self.actions.append(action)
        self.stepped.set()
        result = next(self.results)
        if isinstance(result, Exception):
            raise result
        if result is None:
            await asyncio.Event().wait()
        return result

    async def close(self):
        self.closed = True


class Sessions:
    def __init__(self, *results):
        self.session = Session(results)
        self.opened = []

    async def open(self, environment, task, seed, limits, *, traceparent="", seats=1, tools=()):
        self.opened.append((environment, task, seed, limits.episode_s))
        self.seats = seats
        return self.session


def agent(policy, sessions, context=100, new=4, opening="", **bounded):
    letters = Letters()
    letters.opening = opening
    bounds = AgentBounds(Limits(), context, new, TokenizerCache(letters), **bounded)
    return EpisodeAgent(policy, sessions, BusySpans(), {TICKET.label: bounds})


GOES_ON = Result(Observation("cd", legal_actions=("z.",)), reward=0.5)
WON = Result(Observation(""), reward=1.0, done=True, metrics={"win": 1.0})


async def test_tokens_are_stored_as_generated_and_rewards_add_up():
    policy, sessions = Says(["x.", "y."], version=3), Sessions(GOES_ON, WON)
    outcome = await agent(policy, sessions).play(TICKET)
    assert (outcome.ending, outcome.reward, outcome.metrics) == (Ending.OK, 1.5, {"win": 1.0})
    assert sessions.opened == [("count", {"n": 3}, 11, 30.0)]
    assert sessions.session.actions == ["x.", "y."]
    assert sessions.session.closed and policy.released == ["7/2"]
    columns = outcome.columns.arrays()
    assert columns["tokens"].tolist() == [1, *map(ord, "abx.cdy.")]
    assert columns["loss_mask"].tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert columns["versions"].tolist() == [3] * 9
    assert outcome.columns.earned == {4: 0.5, 8: 1.0}
    first, second = policy.requests
    assert (first.request_id, second.request_id, first.session) == ("7/2/1", "7/2/2", "7/2")
    assert second.ids == [1, *map(ord, "abx.cd")]
    assert (second.seed, second.temperature, second.filters) == (12, 0.5, SamplingFilters())
    filtered = replace(TICKET, filters=SamplingFilters(top_k=3))
    policy = Says(["x."])
    await agent(policy, Sessions(WON)).play(filtered)
    assert policy.requests[0].filters == SamplingFilters(top_k=3)


async def test_roles_and_unfinished_actions_reach_the_codec():
    sessions = Sessions(replace(GOES_ON, observation=Observation("cd", role="tool")), GOES_ON, WON)
    outcome = await agent(Says(["x.", "yyyy", "z."]), sessions).play(replace(TICKET, transcript=True))
    assert outcome.columns.tokens == [1, *map(ord, "abx.!cdyyyy~cdz.")]
    assert [(turn.role, turn.text, turn.tokens) for turn in outcome.transcript] == [
        ("system", "Be brief.", 0),
        ("user", "ab", 3),
        ("assistant", "x.", 2),
        ("tool", "cd", 3),
        ("assistant", "yyyy", 4),
        ("user", "cd", 3),
        ("assistant", "z.", 2),
    ]


async def test_what_opens_an_answer_is_part_of_its_text():
    sessions = Sessions(WON)
    playing = agent(Says(["x."]), sessions, opening="So: ")
    outcome = await playing.play(replace(TICKET, transcript=True))
    assert sessions.session.actions == ["So: x."]
    assert outcome.transcript[-1].text == "So: x." and outcome.transcript[-1].tokens == 2


async def test_a_transcript_shows_what_was_truncated_and_costs_nothing_unasked():
    truncated = await agent(Says(["xyzw."]), Sessions(WON), context=5).play(replace(TICKET, transcript=True))
    assert [(turn.role, turn.text) for turn in truncated.transcript[1:]] == [
        ("user", "ab"),
        ("assistant", "xy"),
    ]
    full = await agent(Says(["x."]), Sessions(GOES_ON), context=7).play(replace(TICKET, transcript=True))
    assert [turn.role for turn in full.transcript] == ["system", "user", "assistant"]
    assert (await agent(Says(["x."]), Sessions(WON)).play(TICKET)).transcript == ()


async def test_max_turns_truncates():
    outcome = await agent(Says(["x."]), Sessions(GOES_ON, GOES_ON, WON)).play(replace(TICKET, max_turns=2))
    assert (outcome.ending, outcome.reward) == (Ending.TRUNCATED, 1.0)
    assert outcome.message == "max_turns 2 reached"
    assert len(outcome.columns.turn_tokens) == 2


async def test_an_answer_that_the_context_ends_truncates_without_a_step():
    sessions = Sessions(WON)
    outcome = await agent(Says(["xyzw."]), sessions, context=5).play(TICKET)
    assert outcome.ending is Ending.TRUNCATED
    assert sessions.session.actions == []
    assert len(outcome.columns) == 5 and outcome.columns.trained_tokens == 2


async def test_an_observation_that_does_not_fit_truncates():
    outcome = await agent(Says(["x."]), Sessions(GOES_ON), context=7).play(TICKET)
    assert outcome.ending is Ending.TRUNCATED
    assert "context full" in outcome.message
    assert len(outcome.columns) == 5


async def test_a_task_that_does_not_fit_at_all_is_an_error_of_the_environment():
    outcome = await agent(Says(["x."]), Sessions(WON), context=3).play(TICKET)
    assert outcome.ending is Ending.ENV_ERROR


async def test_an_answer_of_full_length_that_fits_is_played():
    sessions = Sessions(WON)
    outcome = await agent(Says(["xyzwv"]), sessions, new=4).play(TICKET)
    assert outcome.ending is Ending.OK
    assert sessions.session.actions == ["xyzw"]


@pytest.mark.parametrize(
    ("failure", "ending"),
    [
        (EnvHostLost("host h died"), Ending.INFRA_ERROR),
        (EnvironmentFailure("the reset failed"), Ending.ENV_ERROR),
        (DeadlineExceeded("step took longer than 1 s"), Ending.TIMEOUT),
        (Result(Observation(""), reward=float("nan"), done=True), Ending.ENV_ERROR),
        (Result(Observation(""), done=True, ending=Ending.ENV_ERROR, message="raised"), Ending.ENV_ERROR),
        (Result(Observation(""), done=True, ending=Ending.TIMEOUT, message="slow"), Ending.TIMEOUT),
    ],
)
async def test_failures_of_the_environment_are_endings(failure, ending):
    sessions = Sessions(failure)
    outcome = await agent(Says(["x."]), sessions).play(TICKET)
    assert outcome.ending is ending
    assert outcome.message and not outcome.trainable
    assert sessions.session.closed


async def test_failures_of_the_engine_are_endings():
    lost = await agent(Says([EngineLost("engine e is gone")]), Sessions(WON)).play(TICKET)
    assert (lost.ending, "engine e is gone" in lost.message) == (Ending.INFRA_ERROR, True)
    full = await agent(Says(["x.", ContextTooLong("9 > 8")]), Sessions(GOES_ON)).play(TICKET)
    assert full.ending is Ending.TRUNCATED


async def test_an_episode_is_bounded():
    sessions = Sessions(None)
    outcome = await agent(Says(["x."]), sessions).play(replace(TICKET, episode_s=0.01))
    assert outcome.ending is Ending.TIMEOUT
    assert sessions.session.closed


async def test_a_turn_is_bounded():
    sessions = Sessions(GOES_ON, None)
    outcome = await agent(Says(["x."]), sessions, turn_s=0.01).play(TICKET)
    assert (outcome.ending, outcome.message) == (
        Ending.TIMEOUT,
        "turn 2 took longer than 0.01 s; raise scheduler.turn_s",
    )
    assert sessions.session.closed and not outcome.trainable


@pytest.mark.parametrize("bounded", [{"turn_s": 0.01}, {}])
async def test_a_slow_episode_may_be_truncated_with_what_it_earned(bounded):
    sessions = Sessions(GOES_ON, None)
    ticket = TICKET if bounded else replace(TICKET, episode_s=0.05)
    outcome = await agent(Says(["x."]), sessions, truncates=True, **bounded).play(ticket)
    assert (outcome.ending, outcome.reward) == (Ending.TRUNCATED, 0.5)
    assert "took longer than" in outcome.message and len(outcome.columns.turn_tokens) == 2


async def test_a_deadline_of_the_gateway_is_never_truncated():
    sessions = Sessions(GOES_ON, DeadlineExceeded("no answer within 5 s", "look at the gateway"))
    outcome = await agent(Says(["x."]), sessions, truncates=True, turn_s=9.0).play(TICKET)
    assert outcome.ending is Ending.TIMEOUT


async def test_rounding_leads_no_reward_out_of_its_range():
    sessions = Sessions(*[replace(GOES_ON, reward=0.1)] * 9, replace(WON, reward=0.1 + 2e-16))
    outcome = await agent(Says(["x."]), sessions, rewards=(0.0, 1.0)).play(replace(TICKET, max_turns=20))
    assert outcome.ending is Ending.OK


async def test_an_episode_that_is_slow_before_its_first_answer_stays_a_timeout():
    class Slow(Says):
        async def generate(self, request):
            await asyncio.Event().wait()

    outcome = await agent(Slow(["x."]), Sessions(WON), turn_s=0.01, truncates=True).play(TICKET)
    assert outcome.ending is Ending.TIMEOUT


@pytest.mark.parametrize(("reward", "ending"), [(1.0, Ending.OK), (1.5, Ending.ENV_ERROR)])
async def test_a_reward_beyond_the_runs_range_is_an_error_of_the_environment(reward, ending):
    sessions = Sessions(replace(WON, reward=reward))
    outcome = await agent(Says(["x."]), sessions, rewards=(-1.0, 1.0)).play(TICKET)
    assert outcome.ending is ending
    if ending is Ending.ENV_ERROR:
        assert outcome.message == "an episode earned 1.5, outside of [-1, 1]"


async def test_each_label_has_its_own_bounds():
    letters = TokenizerCache(Letters())
    bounds = {
        "short": AgentBounds(Limits(), 100, 1, letters),
        "long": AgentBounds(Limits(reset_s=7.0), 100, 4, letters),
    }
    for label, most in (("short", 1), ("long", 4)):
        policy = Says(["x."])
        played = EpisodeAgent(policy, Sessions(WON), BusySpans(), bounds)
        await played.play(replace(TICKET, label=label))
        assert [request.max_new_tokens for request in policy.requests] == [most]


async def test_weights_that_never_arrive_are_no_timeout_of_the_episode():
    sessions = Sessions(WON)
    outcome = await agent(Says(["x."], version=0), sessions).play(replace(TICKET, episode_s=0.01))
    assert outcome.ending is Ending.INFRA_ERROR
    assert "version 1 did not arrive" in outcome.message
    assert sessions.opened == []


async def test_a_task_that_is_no_object_is_an_error_of_the_environment():
    outcome = await agent(Says(["x."]), Sessions(WON)).play(replace(TICKET, task_json=json.dumps([1])))
    assert outcome.ending is Ending.ENV_ERROR


async def test_scripted_play_asks_no_engine_and_reproduces():
    played = []
    for seed in (5, 5, 6, 7, 8, 9):
        policy, sessions = Says([]), Sessions(GOES_ON, WON)
        policy.version = 0
        ticket = replace(TICKET, scripted=True, sample_seed=seed, min_version=0)
        outcome = await agent(policy, sessions).play(ticket)
        assert (outcome.ending, policy.requests) == (Ending.OK, [])
        assert outcome.columns.arrays()["logprobs"].tolist() == [0.0] * 9
        played.append(sessions.session.actions)
    assert played[0] == played[1]
    assert {actions[0] for actions in played} == {"x.", "y."}


async def test_scripted_play_needs_legal_actions():
    sessions = Sessions(WON)
    sessions.session.observation = Observation("ab")
    outcome = await agent(Says([]), sessions).play(replace(TICKET, scripted=True, min_version=0))
    assert outcome.ending is Ending.ENV_ERROR


async def test_cancelling_closes_the_session():
    sessions = Sessions(None)
    policy = Says(["x."])
    task = asyncio.create_task(agent(policy, sessions).play(TICKET))
    await sessions.session.stepped.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sessions.session.closed and policy.released == ["7/2"]


SHOWN = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "on."},
    {"role": "tool", "content": "ok"},
    {"role": "assistant", "content": "end."},
]
SHOWN_TICKET = replace(
    TICKET, scripted=True, min_version=0, transcript=True, task_json=json.dumps({"n": 3, "do": SHOWN})
)


async def test_a_demonstration_is_imitated_without_environment_and_engine():
    policy, sessions = Says([]), Sessions()
    playing = agent(policy, sessions, demonstrations="do", rewards=(0.5, 1.0))
    outcome = await playing.play(SHOWN_TICKET)
    assert (outcome.ending, outcome.message, policy.requests, sessions.opened) == (Ending.OK, "", [], [])
    columns = outcome.columns.arrays()
    assert columns["tokens"].tolist() == [1, *map(ord, "goon.!okend.")]
    assert columns["loss_mask"].tolist() == [0] * 3 + [1] * 3 + [0] * 3 + [1] * 4
    assert columns["turns"].tolist() == [0] * 6 + [1] * 7
    assert [(turn.role, turn.text) for turn in outcome.transcript[1:]] == [
        ("user", "go"),
        ("assistant", "on."),
        ("tool", "ok"),
        ("assistant", "end."),
    ]


async def test_a_demonstration_ends_where_a_bound_is_reached():
    playing = agent(Says([]), Sessions(), demonstrations="do", rewards=(0.5, 1.0))
    turns = await playing.play(replace(SHOWN_TICKET, max_turns=1))
    assert (turns.ending, turns.message) == (Ending.TRUNCATED, "max_turns 1 reached")
    context = await agent(Says([]), Sessions(), context=10, demonstrations="do").play(SHOWN_TICKET)
    assert context.ending is Ending.TRUNCATED and len(context.columns) == 9
    assert "an answer of 4 tokens exceeds the 1 left" in context.message


async def test_the_environment_never_sees_the_demonstration():
    sessions = Sessions(WON)
    played = replace(SHOWN_TICKET, scripted=False, min_version=1)
    assert (await agent(Says(["x."]), sessions, demonstrations="do").play(played)).ending is Ending.OK
    assert sessions.opened[0][1] == {"n": 3}


async def test_what_is_no_demonstration_is_an_error_of_the_environment():
    broken = replace(SHOWN_TICKET, task_json=json.dumps({"do": SHOWN[:1]}))
    outcome = await agent(Says([]), Sessions(), demonstrations="do").play(broken)
    assert outcome.ending is Ending.ENV_ERROR and "its last message is no answer" in outcome.message
