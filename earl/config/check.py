"""Checks across keys of a run file: contradictions between them, and what they point to."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from earl.config.algorithm_check import check_algorithm
from earl.config.column_bytes import check_frozen_stages
from earl.config.deterministic_check import check_deterministic
from earl.config.distribution import check_placement
from earl.config.engines import check_engine
from earl.config.mixture import MixtureEntry
from earl.config.model_check import check_model
from earl.config.opponents import check_opponents
from earl.config.paced_check import check_paced
from earl.config.plan_check import check_plan
from earl.config.pool_check import check_pool
from earl.config.protected import check_protected
from earl.config.replay_check import check_replay
from earl.config.reward_model_check import check_reward_model
from earl.config.run import RunConfig
from earl.config.teacher_check import check_teacher
from earl.config.warmup_check import check_record, check_warmup
from earl.config.weight import first_step_without_weight, schedule_of
from earl.errors import ConfigError, TransportUnavailable
from earl.fragments.advantages import GROUP_RELATIVE
from earl.loopback import is_loopback
from earl.parallelism import TRAINER

LEAST_CONTEXT_TOKENS, LEAST_MICROBATCH_TOKENS = 8, 64


def cross_check(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Raises the error of the first contradiction between keys.

    elsewhere: the run is planned for another machine; the directory of arenas, and a checkpoint of which
    model.shape tells the sizes, need not be here.
    """
    check_environments(config)
    check_protected(config)
    check_opponents(config)
    check_model(config, elsewhere=elsewhere)
    check_lengths(config)
    check_batches(config)
    check_groups(config)
    check_algorithm(config)
    check_replay(config)
    check_engine(config)
    check_deterministic(config)
    check_frozen_stages(config)
    check_teacher(config, elsewhere=elsewhere)
    check_warmup(config)
    check_record(config)
    check_reward_model(config, elsewhere=elsewhere)
    check_profile(config)
    check_switch(config)
    check_data_plane(config, elsewhere=elsewhere)
    check_traces(config)
    check_placement(config)
    check_alternate(config)
    check_paced(config)
    check_pool(config)
    check_plan(config, elsewhere=elsewhere)


def check_alternate(config: RunConfig) -> None:
    """Raises ConfigError for a run in which rollout and trainer take turns and something of it cannot."""
    rollout, trainer = config.rollout, config.trainer
    if not config.alternates:
        if trainer.offload_dir:
            raise ConfigError(
                f"trainer.offload_dir = {trainer.offload_dir!r} without turns would be used nowhere",
                'set stack.share = "alternate", or remove the key',
            )
        return
    if rollout.engine != "torch" and rollout.device == "cpu":
        raise ConfigError(
            f'stack.share = "alternate" with rollout.engine = "{rollout.engine}" on a CPU: it returns its '
            "memory on GPUs only",
            'set rollout.engine = "torch", or stack.share = true',
        )
    if config.scheduler.selector == "on":
        raise ConfigError(
            'stack.share = "alternate" with scheduler.selector = "on": a stage that sleeps cannot change its '
            "parallelism",
            'set scheduler.selector = "observe" or "static"',
        )
    if config.frozen is not None:
        raise ConfigError(
            'stack.share = "alternate" with an opponent that is a frozen version: its engines do not sleep',
            "remove opponent, or set stack.share = true",
        )


def check_environments(config: RunConfig) -> None:
    """Raises ConfigError unless the run names its environments in one form, each label once, and the bounds
    of each lie within the run's."""
    if config.environment is not None and config.environments:
        raise ConfigError(
            f"[environment] ({config.environment.name}) and [[environments]] "
            f"({', '.join(section.name for section in config.environments)}) are both given",
            "make [environment] one more [[environments]], or remove the one or the other",
        )
    labels: set[str] = set()
    serves: dict[str, str] = {}
    judged = config.evaluation.episodes
    for number in filter(None, (judged, config.evaluation.every_episodes if judged else 0)):
        if number < len(config.mixture):
            raise ConfigError(
                f"{number} episodes of an evaluation are fewer than the {len(config.mixture)} environments",
                "raise evaluation.episodes (and evaluation.every_episodes), or set it to 0",
            )
        for entry in config.mixture:
            if number // len(config.mixture) < len(entry.evaluation_tasks):
                raise ConfigError(
                    f"{number} episodes of an evaluation leave environment {entry.label} some of its "
                    f"{len(entry.evaluation_tasks)} evaluation_tasks unplayed",
                    "raise evaluation.episodes (and evaluation.every_episodes), or give fewer tasks",
                )
    for entry in config.mixture:
        if serves.setdefault(entry.name, entry.section.serve) != entry.section.serve:
            raise ConfigError(
                f"environment {entry.name} has serve = {serves[entry.name]!r} and {entry.section.serve!r}: a "
                "gateway knows environments by name alone",
                "give both entries one serve, or serve them under two names",
            )
        if entry.label in labels:
            raise ConfigError(
                f"[[environments]] has two entries {entry.label!r}", "give each a label of its own"
            )
        labels.add(entry.label)
        _check_bounds(config, entry)
    schedules = [schedule_of(entry.section.weight) for entry in config.mixture]
    if (step := first_step_without_weight(schedules) if schedules else None) is not None:
        raise ConfigError(
            f"the weights of all environments are 0 at step {step}: there would be nothing to play",
            "give one of them a weight above 0 there",
        )


def _check_bounds(config: RunConfig, entry: MixtureEntry) -> None:
    """Raises ConfigError for bounds of an environment's own that cannot hold."""
    most, bound = config.rollout.max_context_tokens, entry.section.max_context_tokens
    if most and bound > most:
        raise ConfigError(
            f"max_context_tokens = {bound} of environment {entry.label} exceeds "
            f"rollout.max_context_tokens = {most}",
            "lower the one or raise the other",
        )
    if (bound or (most and entry.section.max_new_tokens)) and entry.max_new_tokens >= (bound or most):
        of_run = "" if entry.section.max_new_tokens else "rollout."
        raise ConfigError(
            f"{of_run}max_new_tokens = {entry.max_new_tokens} leaves environment {entry.label} no prompt in "
            f"max_context_tokens = {bound or most}",
            "lower max_new_tokens or raise max_context_tokens",
        )
    if entry.group_size == 1 and config.scheduler.advantage in GROUP_RELATIVE:
        of_entry = entry.section.group_size == 1
        raise ConfigError(
            f"{f'group_size = 1 of environment {entry.label}' if of_entry else 'scheduler.group_size = 1'} "
            "makes every advantage zero: a group is compared with its own mean "
            f"(scheduler.advantage = {config.scheduler.advantage!r})",
            'use a group_size of 2 or more, or scheduler.advantage = "reinforce++"',
        )
    least_most = entry.section.reward_range
    if least_most and not (len(least_most) == 2 and least_most[0] < least_most[1]):
        raise ConfigError(
            f"reward_range = {least_most} of environment {entry.label} is no range",
            "give the least and the most that an episode may earn: [-1, 1]",
        )
    if entry.section.task_key and not entry.section.tasks:
        raise ConfigError(
            f"task_key = {entry.section.task_key!r} of environment {entry.label} without tasks has no effect",
            "set tasks to a file with that column, or remove task_key",
        )
    if (shown := entry.section.demonstration_key) and not entry.section.tasks:
        raise ConfigError(
            f"demonstration_key = {shown!r} of environment {entry.label} without tasks has no effect",
            "set tasks to a file with that column, or remove demonstration_key",
        )
    if shown and entry.seats > 1:
        raise ConfigError(
            f"demonstration_key = {shown!r} of environment {entry.label}, whose episodes have {entry.seats} "
            "seats: a conversation is of one",
            "remove demonstration_key, or train it in an environment with one seat",
        )
    if entry.section.order == "curriculum" and not (entry.section.tasks or entry.section.instances):
        raise ConfigError(
            f'order = "curriculum" of environment {entry.label} without tasks or instances: endless '
            "seeds never come back",
            "set tasks or instances, or remove order",
        )
    if entry.section.tasks and entry.section.instances:
        raise ConfigError(
            f"environment {entry.label} has tasks = {entry.section.tasks!r} and instances = "
            f"{entry.section.instances}",
            "remove the one or the other",
        )
    if entry.section.system and not config.model.chat:
        raise ConfigError(
            f"system = {entry.section.system[:40]!r} of environment {entry.label} without model.chat = true "
            "would be used nowhere",
            "set model.chat = true, or remove system",
        )


def check_lengths(config: RunConfig) -> None:
    """Raises ConfigError if engines or ranks cannot hold the longest sequence."""
    rollout = config.rollout
    positions = config.model.scratch.max_positions
    for key, tokens, least in (
        ("rollout.max_context_tokens", rollout.max_context_tokens, LEAST_CONTEXT_TOKENS),
        ("rollout.held_context_tokens", rollout.held_context_tokens, LEAST_CONTEXT_TOKENS),
        ("model.scratch.max_positions", positions, LEAST_CONTEXT_TOKENS),
        ("trainer.microbatch_tokens", config.trainer.microbatch_tokens, LEAST_MICROBATCH_TOKENS),
    ):
        if 0 < tokens < least:
            raise ConfigError(f"{key} = {tokens} is less than {least}", f"give {least} or more, or 0")
    if positions and not config.model.path and rollout.max_context_tokens > positions:
        raise ConfigError(
            f"rollout.max_context_tokens = {rollout.max_context_tokens} exceeds "
            f"model.scratch.max_positions = {positions}",
            "lower the one or raise the other",
        )
    bound = config.context_bound
    if bound.source != "unknown" and rollout.max_new_tokens >= bound.tokens:
        raise ConfigError(
            f"rollout.max_new_tokens = {rollout.max_new_tokens} leaves no prompt in "
            f"{bound.source.rpartition('.')[2]} = {bound.tokens}",
            f"raise {bound.source}",
        )
    trainer = config.trainer
    if 0 < trainer.microbatch_tokens * trainer.ranks < rollout.max_context_tokens:
        raise ConfigError(
            f"trainer.microbatch_tokens = {trainer.microbatch_tokens}"
            + (f" on each of {trainer.ranks} ranks" if trainer.ranks > 1 else "")
            + f" is less than one sequence (rollout.max_context_tokens = {rollout.max_context_tokens})",
            "raise trainer.microbatch_tokens",
        )


def check_batches(config: RunConfig) -> None:
    """Raises ConfigError unless every trainer replica gets a sequence of every mini-batch."""
    scheduler, plan = config.scheduler, config.layout_plan
    layouts = [config.trainer.parallelism] if plan is None else plan.layouts(TRAINER)
    dp = max(layout.dp for layout in layouts)
    smallest = min(
        (scheduler.min_group_size or entry.group_size) * entry.trained_seats for entry in config.mixture
    )
    episodes = smallest * scheduler.batch_groups
    sizes = [
        ("scheduler.group_size x batch_groups", episodes, "trainer.minibatches", config.trainer.minibatches)
    ]
    if config.warmup.batches:
        episodes = config.warmup.batch_episodes
        sizes.append(("warmup.batch_episodes", episodes, "warmup.minibatches", config.warmup.minibatches))
    for name, episodes, key, minibatches in sizes:
        if episodes < dp * minibatches:
            raise ConfigError(
                f"{name} = {episodes} sequences cannot feed {dp} replicas (trainer.ranks / (tp x cp)) "
                f"x {key} = {minibatches}",
                f"raise {name} or lower {key}",
            )


def check_groups(config: RunConfig) -> None:
    """Raises ConfigError if groups could be trained with fewer trajectories than tell anything."""
    least = config.scheduler.min_group_size
    if config.scheduler.truncated == "drop" and not least and not config.scheduler.extra_episodes:
        raise ConfigError(
            'scheduler.truncated = "drop" without scheduler.min_group_size would drop a whole group for each '
            "truncated episode",
            "set scheduler.min_group_size, for example to half of group_size, or scheduler.extra_episodes",
        )
    if config.scheduler.close_groups and not least:
        raise ConfigError(
            f"scheduler.close_groups = {config.scheduler.close_groups} without scheduler.min_group_size: "
            "nothing says with how many episodes a group may be closed",
            "set scheduler.min_group_size, for example to half of group_size",
        )
    smallest = min(config.mixture, key=lambda entry: entry.group_size)
    if least == 1 and config.scheduler.advantage in GROUP_RELATIVE:
        raise ConfigError(
            "scheduler.min_group_size = 1 makes the advantage of a trajectory that is left alone zero",
            "use 2 or more, or 0 for whole groups",
        )
    if config.scheduler.resample and config.scheduler.advantage in ("reinforce++", "reward"):
        raise ConfigError(
            f"scheduler.resample = {config.scheduler.resample} with scheduler.advantage = "
            f"{config.scheduler.advantage!r} would replace groups whose rewards are all equal, and there "
            "they teach something",
            'remove scheduler.resample, or set scheduler.advantage = "reinforce++-baseline"',
        )
    if config.scheduler.resample and smallest.group_size == 1:
        raise ConfigError(
            f"scheduler.resample = {config.scheduler.resample} with group_size = 1 of {smallest.label}: in a "
            "group of one all rewards are equal, so each would be replaced",
            "remove scheduler.resample, or raise group_size",
        )
    largest = max(config.mixture, key=lambda entry: entry.group_size)
    if config.scheduler.close_groups and least >= largest.group_size + config.scheduler.extra_episodes:
        raise ConfigError(
            f"scheduler.close_groups = {config.scheduler.close_groups} with scheduler.min_group_size = "
            f"{least}: no group has more episodes than that, so none is closed early",
            "lower scheduler.min_group_size, or remove scheduler.close_groups",
        )
    if least > smallest.group_size:
        raise ConfigError(
            f"scheduler.min_group_size = {least} exceeds the group_size = {smallest.group_size} of "
            f"{smallest.label}",
            "lower the one or raise the other",
        )


def check_profile(config: RunConfig) -> None:
    """Raises ConfigError if scheduler.profile is missing."""
    profile = config.scheduler.profile
    if profile and not Path(profile).expanduser().is_file():
        raise ConfigError(
            f"scheduler.profile = {profile!r} is not a file",
            "measure one with `earl profile`, or remove the key",
        )


def check_switch(config: RunConfig) -> None:
    """Raises ConfigError if a part of a switch's preparation has more time than all of it."""
    switch = config.switch
    if switch.load_s > switch.prepare_s:
        raise ConfigError(
            f"switch.load_s = {switch.load_s:g} is more than switch.prepare_s = {switch.prepare_s:g}, of "
            "which it is a part",
            f"give at most {switch.prepare_s:g}, or raise switch.prepare_s",
        )


def check_data_plane(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Raises an error unless arenas have a directory, and the transport agrees with what is required.

    elsewhere: the directory is another machine's.
    """
    plane = config.data_plane
    if not elsewhere and not Path(plane.arena_dir).is_dir():
        raise ConfigError(
            f"data_plane.arena_dir = {plane.arena_dir!r} is not a directory",
            "give a tmpfs, on Linux /dev/shm",
        )
    if plane.require == "shm" and plane.transport in ("ucx", "nixl"):
        raise TransportUnavailable(
            f'data_plane.require = "shm" contradicts transport = "{plane.transport}"',
            'set transport = "auto" or "shm"',
        )
    if plane.require == "rdma" and plane.transport in ("shm", "ucx"):
        raise TransportUnavailable(
            f'data_plane.require = "rdma" contradicts transport = "{plane.transport}"',
            'set transport = "auto" or "nixl"',
        )
    if not plane.loopback and not plane.trusted_network:
        raise ConfigError(
            f"data_plane.bind = {plane.bind!r} is off loopback, and the data plane's wires carry no TLS",
            "set data_plane.trusted_network = true if the network is yours alone, or bind 127.0.0.1",
        )


def check_traces(config: RunConfig) -> None:
    """Raises ConfigError if traces would leave this machine without TLS."""
    url = urlsplit(config.obs.traces)
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        raise ConfigError(
            f"obs.traces = {config.obs.traces!r} would send traces off this machine without TLS",
            "give an https:// address, or a collector on this machine that passes them on",
        )
