"""`[environment]`, `[[environments]]` and `[gateway]`: what the agent acts in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from earl.config.base import ConfigSection
from earl.config.weight import Weight

# As hosts can register it.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$"
# A label: the characters of a registered name, and spaces between them.
LABEL = r"^([A-Za-z0-9][A-Za-z0-9._/+ -]{0,62}[A-Za-z0-9._/+-]|[A-Za-z0-9])?$"


class EnvironmentConfig(ConfigSection):
    """An environment of the run: the only one, [environment], or one of several, each [[environments]]."""

    # Registered name of the environment, for example "open_spiel/tic_tac_toe".
    #
    # docs/adapters.md lists those that come with EARL; for your own, give the name that it registers.
    name: str = Field(pattern=NAME)
    # Name by which metrics, commands and pages show this entry. Empty: its `name`.
    #
    # Set it where two entries play the same environment with different tasks.
    label: str = Field(default="", pattern=LABEL)
    # Share of the groups that are issued, relative to the weights of the other entries; or a schedule,
    # [[0, 3.0], [50, 1.0]]: the weight at these steps of training, linear between them, constant before and
    # after.
    #
    # Raise it for environments that should be learned sooner; give a schedule for those that should begin
    # later, or end. A protected entry may have 0: it is then evaluated alone.
    weight: Weight = 1.0
    # A version that has lost too much of this entry's first score (evaluation.protected_loss) is neither the
    # best one nor the exported model. It needs reward_range, from whose lower end the score counts.
    #
    # Set it for what the model can do already when you add a task.
    protected: bool = False
    # Episodes of one task instance, each a trajectory for every seat that learns; 0: scheduler.group_size.
    #
    # Raise it where successes are rare.
    group_size: int = Field(default=0, ge=0)
    # Seats of an episode that the policy plays, against itself. Each seat's trajectory has its own reward,
    # and is compared with the others of its group in that seat. The environment has to offer the seats.
    # Evaluations play one.
    #
    # Set it to 2 to learn a game for two by self-play.
    seats: int = Field(default=1, ge=1, le=64)
    # Who plays the other seats in training: "current", the policy itself, which learns in all of them; or
    # "frozen", an earlier version, in all seats but one. The seat that learns alternates. The opponent's
    # engines hold its weights and KV in addition to the others' (docs/tasks.md).
    #
    # Set "frozen" if win rates swing, or training goes round in circles, because the opponent changes with
    # the policy.
    opponent: Literal["current", "frozen"] = "current"
    # Steps for which opponent = "frozen" keeps a version: step s plays against the one that step
    # s - s % frozen_every began with.
    #
    # Raise it for an opponent that is weaker and changes less; lower it for a stronger one.
    frozen_every: int = Field(default=10, ge=1)
    # Most actions of an episode, of each seat; 0: scheduler.max_turns.
    #
    # Set it where this environment needs more, or fewer, than the others.
    max_turns: int = Field(default=0, ge=0)
    # Most tokens of one answer; 0: rollout.max_new_tokens.
    #
    # Set it where answers are longer, or shorter, than in the other environments.
    max_new_tokens: int = Field(default=0, ge=0)
    # Most tokens of a trajectory, at most rollout.max_context_tokens; 0: that.
    #
    # Set it to truncate the episodes of this environment sooner.
    max_context_tokens: int = Field(default=0, ge=0)
    # The least and the most that an episode may earn; one beyond that is the environment's error, and is not
    # trained on. Empty: only what the host itself declares counts.
    #
    # Set it for environments of others whose rewards you want to be sure of.
    reward_range: list[Annotated[float, Field(allow_inf_nan=False)]] = []
    # System message of the chat; empty: model.system. It needs model.chat = true.
    #
    # Say what this environment expects that the others do not.
    system: str = ""
    # Names of the environment's tools that the policy may call; empty: all.
    #
    # Leave tools out to see what the policy does without them, or to keep prompts short.
    tools: list[Annotated[str, StringConstraints(min_length=1)]] = []
    # Settings of the task, given to every reset. Which ones exist is up to the environment.
    #
    # Set them to make tasks easier while all rewards of a group are equal, and harder once most episodes
    # succeed.
    task: dict[str, Any] = {}
    # Settings that are laid over `task` in evaluations alone: tables that the episodes of an evaluation take
    # in turns.
    #
    # Name the opponent of evaluations here where training is self-play, once for each seat that is judged.
    evaluation_tasks: Annotated[list[dict[str, Any]], Field(max_length=64)] = []
    # File of the tasks, .jsonl or .parquet: each row is a table that is laid over `task` in one task. Empty:
    # endless seeds, or `instances`.
    #
    # Set it to train on a data set.
    tasks: str = ""
    # Number of tasks where a task is a seed of the environment; 0: endless.
    #
    # Set it to see each task several times, as in epochs over a data set.
    instances: int = Field(default=0, ge=0, le=1_000_000)
    # The column of `tasks` that tells which rows are the same problem: those are all trained on, or all held
    # out. Empty: the whole row.
    #
    # Set it where one problem stands in several rows, in other words.
    task_key: str = ""
    # The column of `tasks` with the conversation that the warm-up imitates in that task, a list of messages
    # with role and content (docs/tasks.md). Empty: the warm-up imitates legal play.
    #
    # Set it to begin with supervised fine-tuning on given trajectories.
    demonstration_key: str = ""
    # The order in which tasks are trained on: "shuffled", every one once in each epoch, or "curriculum", more
    # often those that recent groups neither always solved nor never (docs/tasks.md).
    #
    # Set "curriculum" where many tasks are too easy or too hard to learn from.
    order: Literal["shuffled", "curriculum"] = "shuffled"
    # The part of `tasks` or `instances` that only evaluations play, chosen by a hash of each task's key.
    #
    # Raise it for narrower intervals of evaluations; lower it to train on more of a small set.
    held_out: float = Field(default=0.1, ge=0, lt=1, allow_inf_nan=False)
    # What the run's own host processes serve, as "package.module:Class" or "package.module:factory". Empty:
    # the run starts none.
    #
    # Leave it empty if hosts connect from outside (`earl env serve`).
    serve: str = ""
    # Number of host processes that the run starts.
    #
    # Raise it if `earl top` shows that engines wait for the environment and cores are free.
    hosts: int = Field(default=1, ge=0)
    # Episodes that one host process plays at the same time.
    #
    # Lower it for environments that need much memory or processor time.
    sessions_per_host: int = Field(default=512, ge=1)
    # Seconds that a run waits for the first host that serves the environment; then it ends.
    #
    # Raise it if hosts are started by hand, or after the run by somebody else.
    wait_s: float = Field(default=600.0, gt=0)
    # Seconds that an episode waits until a host has free capacity for it; then its attempt fails.
    #
    # Raise it if hosts start slowly or have few sessions.
    queue_s: float = Field(default=60.0, gt=0)
    # Seconds that a reset may take.
    #
    # Raise it for environments that start containers or servers.
    reset_s: float = Field(default=30.0, gt=0)
    # Seconds that a step may take.
    #
    # Raise it for tools that compute for long.
    step_s: float = Field(default=30.0, gt=0)


class GatewayConfig(ConfigSection):
    # host:port at which the environment gateway listens; port 0 takes any free one.
    #
    # Give a fixed port if hosts connect from outside; off loopback it needs TLS and a token.
    bind: str = "127.0.0.1:0"
    # Addresses, "host:port", of environment hosts that listen: the gateway connects to them. All other hosts
    # connect to the gateway.
    #
    # Set it for hosts that cannot open connections themselves, as behind a firewall.
    dial: list[Annotated[str, StringConstraints(pattern=r"^.+:[0-9]+$")]] = []
    # Seconds after its last message until a host counts as lost.
    #
    # Raise it for hosts whose event loop is blocked for longer; lower it to replace lost hosts sooner.
    lease_s: float = Field(default=5.0, gt=0)
    # Seconds within which a host whose connection broke may return and keep its sessions.
    #
    # Raise it on networks that lose connections.
    reconnect_s: float = Field(default=0.5, ge=0)
    # Number of hosts on which the reset of an episode is tried: one whose host is lost before the first step
    # starts again on another host.
    #
    # Raise it if hosts come and go often; 1 fails the attempt at once.
    reset_attempts: int = Field(default=3, ge=1)
    # Largest message of a host, in bytes of the whole result.
    #
    # Raise it for environments with long observations.
    max_text_bytes: int = Field(default=1 << 20, ge=1024)
    # Longest action in whose text hosts look for calls of tools, in characters, thinking included. With calls
    # in a longer one the agent gets an error as their result.
    #
    # Raise it, together with rollout.max_new_tokens, for agents that think for long or pass long arguments to
    # tools. No action may have more bytes than max_text_bytes.
    max_action_characters: int = Field(default=16_384, ge=256, le=1 << 20)
    # Consecutive faults of a host's environment after which it gets no sessions for quarantine_s.
    #
    # Raise it for an environment that fails often on all hosts alike; lower it to leave broken hosts sooner.
    quarantine_faults: int = Field(default=5, ge=1)
    # Seconds for which an environment of a host gets no sessions after quarantine_faults faults. Each further
    # quarantine is twice as long, at most 16 times as long.
    #
    # Raise it if broken hosts take longer to recover; lower it if faults are brief.
    quarantine_s: float = Field(default=30.0, gt=0)
