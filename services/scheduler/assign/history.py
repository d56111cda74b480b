"""Lengths of episodes by task, and the length that they predict for the task's next ones. Pure.

    a task's recorded lengths ─► their mean logarithm ─► its environment's trend ─┐
    no length of the task yet ─► its environment's lengths, of prompts as long ───┴─► a quantile, in tokens

Lengths of one prompt's responses change little between epochs, and their ranks among all prompts by 2 to 4 %
(RhymeRL, arXiv 2508.18588). The trend is a line through (recorded, next) of recent episodes: it follows
lengths that grow for all tasks, and trusts the record less where tasks change more.

The length of an episode is that of its response: all tokens after the first prompt, those of observations
included. A quantile is predicted and no mean, for an engine is busy until the last of its episodes ends.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from operator import mul
from statistics import NormalDist

from services.scheduler.monitor.length_sketch import LengthSketch

# The quantile to predict, above the median: a late engine delays a batch, an early one does not.
QUANTILE = 0.7
# Lengths that are recorded of a task, and the number of newer ones after which one counts half.
RECORDED_EPISODES, HALF_LIFE_EPISODES = 32, 16
# Tasks and environments that are remembered; what was not played for longest is forgotten first.
MOST_TASKS, MOST_ENVIRONMENTS = 1 << 16, 1 << 10
# Episodes that the trend of an environment is about, and the weight of the line with which it begins.
TREND_EPISODES, PRIOR_EPISODES = 4096, 16.0
# The weight of an environment's former lengths is halved after so many new ones.
FADE_EPISODES = 1024
# Up to so many lengths a quantile is that of all of them; later it is computed once for as many more.
FRESH_EPISODES = 64
# Episodes that the error is averaged over.
ERROR_EPISODES = 4096

_WEIGHTS = tuple(0.5 ** (age / HALF_LIFE_EPISODES) for age in range(RECORDED_EPISODES))


@dataclass(frozen=True, slots=True)
class LengthPrediction:
    """A response's predicted length in tokens; 0 while its environment has no episode.

    episodes: the weight of the task's recorded episodes; 0 for a cold start.
    """

    tokens: float
    episodes: float


@dataclass(frozen=True, slots=True)
class PredictionError:
    """The error of recent predictions, each made before its group began.

    factor: the geometric mean of the larger over the smaller of length and prediction, 1 without any error.
    covered: the part of episodes that were no longer than predicted, near the quantile if that is right.
    Both are None before an episode with a prediction has ended.
    """

    factor: float | None = None
    covered: float | None = None


class LengthHistory:
    """Records lengths of episodes, in bounded memory: some 600 bytes a task.

    quantile: the one to predict, above 0 and below 1.
    """

    def __init__(self, quantile: float = QUANTILE, most_tasks: int = MOST_TASKS) -> None:
        self._quantile = quantile
        self._most_tasks = most_tasks
        # By environment's label and number; what was played last stands at the end.
        self._tasks: OrderedDict[tuple[str, int], _TaskRecord] = OrderedDict()
        self._environments: OrderedDict[str, _EnvironmentRecord] = OrderedDict()
        self._log_factor = _RecentMean()
        self._covered = _RecentMean()

    def __len__(self) -> int:
        """Number of tasks that are remembered."""
        return len(self._tasks)

    @property
    def error(self) -> PredictionError:
        """The error of recent predictions."""
        log_factor = self._log_factor.value
        return PredictionError(None if log_factor is None else math.exp(log_factor), self._covered.value)

    def observe(
        self, environment: str, task: int, group: int, prompt_tokens: int, response_tokens: int,
        predicted: float | None = None,
    ) -> None:  # fmt: skip
        """Records an episode that ended by itself or was truncated.

        environment: its label; "" in a run that has only one. task: its number in the set; -1 if it is in
        none, and then it counts for its environment alone. group: of its ticket. A group is played together,
        so its episodes count as predictions for later groups alone. Lengths in tokens; a response below 1
        counts as 1. predicted: for its group before that began, 0 if nothing was; None for what is predicted
        now.
        """
        response_tokens = max(1, response_tokens)
        of_environment = self._environment(environment)
        if task < 0:
            if predicted is None:
                predicted = of_environment.quantile(prompt_tokens)
            self._judge(predicted, response_tokens)
        else:
            record = self._tasks.setdefault((environment, task), _TaskRecord())
            self._tasks.move_to_end((environment, task))
            if len(self._tasks) > self._most_tasks:
                self._tasks.popitem(last=False)
            if group != record.group:
                if predicted is None:
                    predicted = self.predict(environment, task, prompt_tokens).tokens
                record.begin(group, predicted)
            self._judge(record.predicted, response_tokens)
            if record.before is not None:
                of_environment.trend.add(record.before, math.log(response_tokens))
            record.add(response_tokens)
        of_environment.add(prompt_tokens, response_tokens)

    def predict(self, environment: str, task: int, prompt_tokens: int) -> LengthPrediction:
        """Predicts the length of a response of the task's next group. task: -1 for one that is in no set.
        prompt_tokens: 0 where they are not known."""
        of_environment = self._environments.get(environment)
        if of_environment is None:
            return LengthPrediction(0.0, 0.0)
        record = self._tasks.get((environment, task)) if task >= 0 else None
        if record is None or not record.lengths:
            return LengthPrediction(of_environment.quantile(prompt_tokens), 0.0)
        recorded, episodes = record.mean()
        return LengthPrediction(of_environment.trend.quantile(recorded, self._quantile), episodes)

    def _environment(self, label: str) -> _EnvironmentRecord:
        record = self._environments.setdefault(label, _EnvironmentRecord(self._quantile))
        self._environments.move_to_end(label)
        if len(self._environments) > MOST_ENVIRONMENTS:
            self._environments.popitem(last=False)
        return record

    def _judge(self, predicted: float, response_tokens: int) -> None:
        if predicted > 0:
            self._log_factor.add(abs(math.log(response_tokens / predicted)))
            self._covered.add(float(response_tokens <= predicted))


@dataclass(slots=True)
class _TaskRecord:
    """Lengths of a task's responses, oldest first. group: of the last ones; before: the mean logarithm of the
    lengths before that group; predicted: the length that was predicted for it."""

    lengths: array[int] = field(default_factory=lambda: array("Q"))
    group: int = -1
    before: float | None = None
    predicted: float = 0.0

    def begin(self, group: int, predicted: float) -> None:
        self.group, self.predicted = group, predicted
        self.before = self.mean()[0] if self.lengths else None

    def add(self, response_tokens: int) -> None:
        self.lengths.append(response_tokens)
        del self.lengths[:-RECORDED_EPISODES]

    def mean(self) -> tuple[float, float]:
        """(mean logarithm of the lengths, weight of the episodes); there is one at least."""
        weights = _WEIGHTS[len(self.lengths) - 1 :: -1]
        episodes = sum(weights)
        return sum(map(mul, weights, map(math.log, self.lengths))) / episodes, episodes


class _EnvironmentRecord:
    """Lengths of all tasks of an environment, by the length of their prompts, and their trend."""

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self.trend = _Trend()
        self._all = _FadingSketch(quantile)
        # By the number of bits of the prompt's length.
        self._by_prompt: dict[int, _FadingSketch] = {}

    def add(self, prompt_tokens: int, response_tokens: int) -> None:
        self._all.add(response_tokens)
        bits = max(1, prompt_tokens).bit_length()
        self._by_prompt.setdefault(bits, _FadingSketch(self._quantile)).add(response_tokens)

    def quantile(self, prompt_tokens: int) -> float:
        return self._by_prompt.get(prompt_tokens.bit_length(), self._all).quantile()


class _Trend:
    """A line through (mean logarithm of a task's recorded lengths, logarithm of its next one), and the spread
    of the next ones around it. Least squares, in which former episodes fade.

    It begins as the line on which lengths stay as they were, with the weight of PRIOR_EPISODES.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = self._yy = 0.0

    def add(self, x: float, y: float) -> None:
        stays = 1 - 1 / TREND_EPISODES
        self._weight = stays * self._weight + 1
        self._x = stays * self._x + x
        self._y = stays * self._y + y
        self._xx = stays * self._xx + x * x
        self._xy = stays * self._xy + x * y
        self._yy = stays * self._yy + y * y

    def quantile(self, x: float, fraction: float) -> float:
        """The length that the next one of a task is below with this probability."""
        if not self._weight:
            return math.exp(x)
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = max(0.0, self._xx / self._weight - mean_x * mean_x)
        covariance = self._xy / self._weight - mean_x * mean_y
        prior = PRIOR_EPISODES / self._weight
        slope = min(1.0, max(0.0, (covariance + prior) / (variance + prior)))
        grown = (mean_y - mean_x) / (1 + prior)
        residual = self._yy / self._weight - mean_y * mean_y + slope * (slope * variance - 2 * covariance)
        deviations = _deviations(fraction)
        return math.exp(
            mean_x + grown + slope * (x - mean_x) + deviations * math.sqrt(max(0.0, residual) / (1 + prior))
        )


class _FadingSketch:
    """A sketch in which former lengths fade, and one of its quantiles.

    A few lengths more hardly change it, and computing it takes as long as counting a hundred: beyond FRESH
    lengths it is computed at every FRESH-th, whenever it is asked for. So a history that is built again from
    the same lengths predicts the same.
    """

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._sketch = LengthSketch()
        self._count = 0
        # None until it is asked for.
        self._quantile: float | None = None

    def add(self, tokens: int) -> None:
        self._sketch.add(tokens)
        self._count += 1
        if self._count % FADE_EPISODES == 0:
            self._sketch.decay(0.5)
        if self._count % FRESH_EPISODES == 0:
            self._quantile = self._sketch.quantile(self._fraction)
        elif self._count < FRESH_EPISODES:
            self._quantile = None

    def quantile(self) -> float:
        if self._quantile is None:
            self._quantile = self._sketch.quantile(self._fraction)
        return self._quantile


class _RecentMean:
    """A mean over about the last ERROR_EPISODES values; None without any."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._count = 0

    def add(self, value: float) -> None:
        self._count = min(self._count + 1, ERROR_EPISODES)
        before = value if self.value is None else self.value
        self.value = before + (value - before) / self._count


@lru_cache(maxsize=64)
def _deviations(fraction: float) -> float:
    """Standard deviations above the mean of a normal distribution at which a fraction of it lies below."""
    return NormalDist().inv_cdf(fraction)
