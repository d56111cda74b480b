"""The selector in a run: one decision a step for every stage that has a profile, written down.

    commit ─► Monitor.step ─► Stages.decide ─► Helm.go ─► decisions.jsonl, the status
                                  ▲    ▲
                                  │    └── Helm.stand: how the stage is cut, what switches cost, what is bad
      profile (scheduler.profile, or what `earl profile` kept for this model and machine)

Without a helm nothing is carried out, and each policy follows its own course.

Promise: a decision delays the loop by what it takes to compute, which is measured and logged (and a
roll-back once, by that of the MOST_PAST decisions before it); a stage whose profile has no answer is left
alone, and the log says why, once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from earl.config.run import RunConfig
from earl.errors import ConfigError, EarlError
from earl.expendable import ExpendableFile
from earl.models.spec import ModelSpec, load_spec
from earl.obs.memory import host_bytes
from earl.obs.metrics import LineFile, read_lines
from earl.parallelism import Parallelism
from services.scheduler.monitor.workload import ROLLOUT, Monitor, Step
from services.scheduler.parallelism import decision_log
from services.scheduler.parallelism.actions import Action, Helm
from services.scheduler.parallelism.legal_layouts import Layouts
from services.scheduler.selector.stages import Observed, Stages, Verdict

if TYPE_CHECKING:
    from services.scheduler.profile.table import MemoryModel

log = logging.getLogger(__name__)

# There where a host has NVIDIA's driver.
NVIDIA = Path("/dev/nvidiactl")
# What the run decided by, in its directory.
PROFILE = "profile.csv"
# A decision that takes longer delays whoever waits for an answer noticeably.
SLOW_S = 0.010
# Decisions of former schedulers that the policies are brought back by.
MOST_PAST = 128

# A profile's CSV text, and what to call it.
Profile = tuple[str, str]


class Selection:
    """last: the latest verdict by stage. Stages without a profile have none.

    search: finds a profile, once training has begun, in a thread of its own. layouts: bounds what the
    profile's parallelisms hold. helm: carries decisions out.
    """

    def __init__(
        self,
        directory: Path,
        monitor: Monitor,
        switch_cost_s: float = 1.0,
        search: Callable[[], Profile | None] | None = None,
        memory: Callable[[str], MemoryModel] | None = None,
        layouts: Layouts | None = None,
        helm: Helm | None = None,
    ) -> None:
        self.last: dict[str, Verdict] = {}
        self._directory = directory
        self._monitor = monitor
        self._switch_cost_s = switch_cost_s
        self._search = search
        self._memory = memory
        self._layouts = layouts
        self._helm = helm
        self._searched: Future[Profile | None] | None = None
        self._make: Callable[[], Stages] = lambda: Stages({})
        self._stages = self._make()
        # The step of the last decisions.
        self._decided = 0
        self._file: LineFile | None = None
        self._said: set[tuple[str, str]] = set()

    @classmethod
    def open(
        cls,
        config: RunConfig,
        directory: Path,
        monitor: Monitor,
        layouts: Layouts | None = None,
        helm: Helm | None = None,
    ) -> Selection:
        """The run's selector, where a former scheduler left it. Raises ConfigError for a bad profile."""
        scheduler = config.scheduler
        one = cls(
            directory,
            monitor,
            scheduler.switch_cost_s,
            memory=partial(memory_of, config, directory),
            layouts=layouts,
            helm=helm if scheduler.selector == "on" else None,
        )
        if scheduler.selector == "static":
            return one
        if scheduler.profile:
            one.begin(*read_profile(scheduler.profile))
        else:
            one._search = partial(kept_profile, config, directory)
        return one

    def begin(self, text: str, name: str) -> None:
        """Decides by this profile from now on. Raises ConfigError."""
        self.decide_by(partial(stages_of, text, name, self._switch_cost_s, self._memory, self._layouts))
        with ExpendableFile(self._directory / PROFILE).written():
            beside = self._directory / f".{PROFILE}.new"
            beside.write_text(text, encoding="utf-8")
            beside.replace(self._directory / PROFILE)
        log.info("parallelism of %s is decided by %s", ", ".join(sorted(self._stages.names)), name)

    def decide_by(self, make: Callable[[], Stages]) -> None:
        """From now on, and from where the decisions in the run's directory end."""
        self._make = make
        for mean_tokens in self._restore():
            self._monitor.remember(mean_tokens)
        self._file = LineFile(self._directory / decision_log.NAME)

    def step(self, committed: int, seen: Step, *, goes_on: bool = True) -> None:
        """Training step `committed` is done: decides for the next one and writes it down.

        goes_on: False if there will be none, and nothing is to be carried out.
        """
        self._look()
        if self._decided > committed:
            # Rolled back: the steps since, and what was decided for them, have not been.
            self._restore(committed + 1)
        for stage in sorted(self._stages.names & seen.stages.keys()):
            self._decide(stage, committed + 1, seen, goes_on=goes_on)
        self._decided = committed + 1

    def relieve(self, seen: Step) -> bool:
        """A sequence waits for a layout that holds it: decides at once, for the step under way.

        False if there is nothing to decide by.
        """
        if self._helm is None or ROLLOUT not in self._stages.names or ROLLOUT not in seen.stages:
            return False
        self._decide(ROLLOUT, max(1, self._decided), seen, must_fit=True)
        return True

    def block(self, one: Parallelism, context_tokens: float) -> None:
        """A sequence of rollout of so many tokens waits, because no engine cut so can hold it."""
        self._stages.block(ROLLOUT, one, context_tokens)

    def _restore(self, below: float = math.inf) -> Iterable[float]:
        """Policies as the decisions for steps below this one left them; mean lengths of rollout's steps."""
        self._stages = self._make()
        past = decision_log.past(read_lines(self._directory / decision_log.NAME), MOST_PAST, below)
        for stage in self._stages.names & past.keys():
            try:
                self._stages.restore(stage, past[stage])
            except EarlError as error:
                log.warning("decisions for %s begin anew, the profile is another one: %s", stage, error)
        self._decided = max((one[-1].step for one in past.values()), default=0)
        return [one.observed.workload.mean_tokens for one in past.get(ROLLOUT, ())]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _look(self) -> None:
        """Starts the search, or takes what it found."""
        if self._search is None:
            return
        if self._searched is None:
            executor = ThreadPoolExecutor(1, "profile")
            self._searched = executor.submit(self._search)
            executor.shutdown(wait=False)
        elif self._searched.done():
            self._search = None
            try:
                found = self._searched.result()
                if found is not None:
                    self.begin(*found)
                    return
                why = "there is no profile of this model on this machine"
            except EarlError as error:
                why = str(error)
            log.info(
                "no parallelism is decided: %s; measure one with `earl profile`, or name a file with "
                "scheduler.profile",
                why,
            )

    def _decide(
        self, stage: str, step: int, seen: Step, *, goes_on: bool = True, must_fit: bool = False
    ) -> None:
        assert self._file is not None
        one, now = seen.stages[stage], time.monotonic()
        observed = Observed(seen.running[stage], one.workload, one.tokens_per_device_s)
        began_s = time.perf_counter()
        try:
            if self._helm is not None:
                stand = self._helm.stand(stage, now)
                self._stages.stand(stage, stand.heading or observed.running, stand.cost_s, stand.barred)
            verdict = self._stages.decide(stage, observed, step)
        except EarlError as error:
            if (stage, "") not in self._said:
                self._said.add((stage, ""))
                log.warning("nothing is decided for %s: %s", stage, error)
            return
        took_s = time.perf_counter() - began_s
        if took_s > SLOW_S:
            log.warning("deciding for %s took %.1f ms, for which every call waited", stage, took_s * 1e3)
        before = self.last.get(stage)
        if before is None or before.decision.after != verdict.decision.after:
            log.info("step %d: %s", step, verdict.sentence)
        self.last[stage] = verdict
        action = Action()
        if self._helm is not None and goes_on:
            action = self._helm.go(verdict, now, must_fit=must_fit)
        if action.held and (stage, action.held) not in self._said:
            self._said.add((stage, action.held))
            log.info("step %d: %s is not cut into %s: %s", step, stage, verdict.chosen, action.held)
        self._file.write(decision_log.encode(verdict, seen, took_s, action))


def read_profile(key: str) -> Profile:
    """What scheduler.profile names. Raises ConfigError."""
    path = Path(key).expanduser()
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"scheduler.profile = {key!r} cannot be read: {error}",
            "give the CSV file that `earl profile` wrote, or remove the key",
        ) from None


def kept_profile(config: RunConfig, directory: Path) -> Profile | None:
    """What `earl profile` has kept for the run's model and settings on this machine, all its stages together.

    Looks at the hardware, so it may take seconds. Raises ModelNotFound.
    """
    from services.scheduler.profile.rows import STAGES, dump
    from services.scheduler.profile.stages import cache_of

    spec = load_spec(directory / "model")
    caches = [cache_of(stage, config, spec) for stage in STAGES]
    rows = [row for cache in caches for row in cache.rows()]
    return (dump(rows), f"what earl profile kept in {caches[0].path.parent}") if rows else None


def memory_of(config: RunConfig, directory: Path, stage: str) -> MemoryModel:
    """The memory model of one stage, for where its profile has no fractions.

    Of CPUs alone: how much memory GPUs have, the scheduler does not know. None before the run has its model.
    """

    @lru_cache(maxsize=1)
    def spec() -> ModelSpec:
        return load_spec(directory / "model")

    def model(one: Parallelism, context_tokens: float, concurrency: float) -> float | None:
        from services.scheduler.memory import predict, ranks_here

        device = getattr(config, stage).device
        if device == "cuda" or (device == "auto" and NVIDIA.exists()) or not (directory / "model").is_dir():
            return None
        taken = predict(stage, config, spec(), one, context_tokens, concurrency, device="cpu")
        return taken.fraction(host_bytes() // ranks_here(config))

    return model


def stages_of(
    text: str,
    name: str,
    switch_cost_s: float,
    memory: Callable[[str], MemoryModel] | None = None,
    layouts: Layouts | None = None,
) -> Stages:
    """A policy and its table for each stage that a profile has rows of. Raises ConfigError."""
    from services.scheduler.profile.rows import parse  # numpy: not for a run without a profile
    from services.scheduler.selector.earl import EarlPolicy
    from services.scheduler.selector.limits import LimitedTable

    rows = parse(text, name)

    def table(stage: str) -> LimitedTable:
        if layouts is None:
            return LimitedTable(rows, stage, memory and memory(stage))
        return LimitedTable(
            rows, stage, memory and memory(stage), holds=layouts.holds(stage), longest=layouts.longest
        )

    tables = {stage: table(stage) for stage in sorted({row.stage for row in rows})}
    return Stages(
        {stage: partial(EarlPolicy, table, switch_cost_s) for stage, table in tables.items()}, tables
    )
