"""The recorded episodes that a run imitates: checked at its launch, and kept in its directory.

    warmup.episodes ─► checked ─► <run>/imitated.jsonl, which the run reads from then on
                         └─► teacher.score = "auto": their mean reward

A resumed run imitates the episodes that it began with, whether their file is still there or not.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from earl.config.mixture import MixtureEntry
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.recorded_episodes import IMITATED, EpisodeFile, RecordedEpisode, read_episodes


@dataclass(frozen=True, slots=True)
class ImitatedEpisodes:
    """file: all recorded episodes. usable: those that are imitated, by the label of their environment."""

    file: EpisodeFile
    usable: Mapping[str, Sequence[RecordedEpisode]]

    @property
    def figures(self) -> dict[str, float]:
        """The figures of every line in metrics.jsonl: episodes recorded, those imitated, the mean reward."""
        return {
            "recorded_episodes": float(len(self.file.episodes)),
            "imitated_episodes": float(sum(map(len, self.usable.values()))),
            "recorded_reward_mean": self.file.reward_mean,
        }

    def by_ticket_label(self, config: RunConfig) -> dict[str, Sequence[RecordedEpisode]]:
        """The same, by the label that tickets have: "" in a run with one environment."""
        if config.environments:
            return dict(self.usable)
        return {"": next(iter(self.usable.values()))}


def imitated_of(config: RunConfig, directory: Path) -> ImitatedEpisodes | None:
    """The episodes that the run in this directory imitates; None if its warm-up imitates none.

    Raises ConfigError for a file that cannot be read, that is not the one that the run began with, and for
    one whose episodes are of other environments or were made with other prompts.
    """
    if not config.warmup.episodes:
        return None
    given, kept = Path(config.warmup.episodes).expanduser(), directory / IMITATED
    file = read_episodes(kept if kept.is_file() else given)
    if kept.is_file() and given.is_file() and read_episodes(given).sha256 != file.sha256:
        raise ConfigError(
            f"warmup.episodes = {str(given)!r} is not the file that the run began with",
            "restore it, or start another run with --name NAME",
        )
    _check_prompts(config, file)
    return ImitatedEpisodes(file, {entry.label: _usable(config, file, entry) for entry in config.mixture})


def keep_imitated(imitated: ImitatedEpisodes | None, directory: Path) -> None:
    """Copies the file into the run's directory, unless it is there."""
    kept = directory / IMITATED
    if imitated is None or kept.is_file():
        return
    scratch = directory / f".{IMITATED}.new"
    shutil.copyfile(imitated.file.path, scratch)
    scratch.replace(kept)


def with_measured_score(config: RunConfig, imitated: ImitatedEpisodes | None) -> RunConfig:
    """The configuration with teacher.score = "auto" decided, where the teacher's rewards count.

    Raises ConfigError if the recorded episodes earned no more than the least reward.
    """
    teacher = config.teacher
    if not teacher.given or not teacher.wean or teacher.score != "auto" or imitated is None:
        return config
    score, low = imitated.file.reward_mean, min(entry.rewards[0] for entry in config.mixture)
    if score <= low:
        raise ConfigError(
            f"the mean reward of {imitated.file.path} is {score:g}, and {low:g} is the least reward: a "
            "teacher that earns nothing can wean nobody",
            "give teacher.score, or set teacher.wean = false",
        )
    return config.model_copy(update={"teacher": teacher.model_copy(update={"score": score})})


def prompts_of(config: RunConfig) -> dict[str, str]:
    """The keys that decide which text stands around an environment's, as texts."""
    model = config.model
    prompts = {
        "model.chat": str(model.chat).lower(),
        "model.observation_prefix": model.observation_prefix,
        "model.action_prefix": model.action_prefix,
    }
    if model.chat:
        prompts |= {f"system of {entry.label}": entry.system for entry in config.mixture}
    return prompts


def _check_prompts(config: RunConfig, file: EpisodeFile) -> None:
    for key, text in prompts_of(config).items():
        recorded = file.header.prompts.get(key, text)
        if recorded != text:
            raise ConfigError(
                f"{file.path} was recorded with {key} = {recorded!r}, and the run has {text!r}",
                "give the run the same, or record the episodes again",
            )


def _usable(config: RunConfig, file: EpisodeFile, entry: MixtureEntry) -> list[RecordedEpisode]:
    """The episodes of an environment that are imitated: long and good enough."""
    played, least = file.played_in(entry.label, entry.name), config.warmup.least_reward
    if not played:
        raise ConfigError(
            f"{file.path} has no episodes of environment {entry.label} ({entry.name}), only of "
            f"{', '.join(file.header.environments)}",
            "record episodes in the environments of this run",
        )
    low, high = entry.rewards
    for episode in played:
        if not low <= episode.reward <= high:
            raise ConfigError(
                f"{file.path} has an episode of {entry.label} that earned {episode.reward:g}, outside of "
                f"reward_range = [{low:g}, {high:g}]",
                "record episodes in the environments of this run",
            )
    fitting = [episode for episode in played if episode.tokens <= entry.max_context_tokens]
    usable = [episode for episode in fitting if least == "any" or episode.reward >= least]
    if not usable:
        raise ConfigError(
            f"of {len(played)} recorded episodes of {entry.label}, {len(fitting)} fit into "
            f"{entry.max_context_tokens} tokens, and none of those earned warmup.least_reward = {least}",
            "lower warmup.least_reward, or raise rollout.max_context_tokens",
        )
    return usable
