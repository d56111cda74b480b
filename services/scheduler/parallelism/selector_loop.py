"""The selector in a run: a decision a step for every stage that has a profile, carried out, written down.

    commit ─► Monitor.step ─► Stages.decide ─► Switching.ask ─► decisions.jsonl, the status
                                  ▲    ▲
                                  │    └── Switching: target, what switches cost, what is barred
      profile (scheduler.profile, or what `earl profile` kept for this model and machine)

A decision is carried out if its stage is free: not pinned, no other switch in progress, and no devices of it
moving. In a run with a pool the division of devices is decided before, by what the same policies know of
every number of devices (split_loop.py). Without a Switching nothing is carried out, and each policy continues
from what it chose last.

Promise: a decision delays the loop by what it takes to compute, which is measured and logged (and a
roll-back once, by that of the MOST_PAST decisions before it); a stage whose profile has no answer is left
alone, and the log gives the reason, once. Time is an argument (monotonic seconds); only what a decision took
is measured here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from earl.config.device_pool import pooled_stages
from earl.config.run import RunConfig
from earl.errors import ConfigError, EarlError
from earl.expendable import ExpendableFile
from earl.models.spec import load_spec
from earl.obs.metrics import LineFile, read_lines
from earl.parallelism import ROLLOUT, STAGES, Parallelism, Replica
from services.scheduler.memory.stage_devices import StageDevices
from services.scheduler.monitor.workload import Monitor, StepFigures
from services.scheduler.parallelism import decision_log
from services.scheduler.parallelism.legal_layouts import LegalLayouts
from services.scheduler.parallelism.stage_memory import memory_of
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.profile.rows import dump, parse
from services.scheduler.profiler.facts import cache_of
from services.scheduler.selector.corrected_profile import LimitedTable
from services.scheduler.selector.decision import LayoutCandidate
from services.scheduler.selector.earl_policy import EarlPolicy
from services.scheduler.selector.stage_policies import Observed, SelectorVerdict, Stages
from services.scheduler.state.switch_records import By

log = logging.getLogger(__name__)

# What the run decided by, in its directory.
PROFILE = "profile.csv"
# A decision that takes longer noticeably delays calls that wait for an answer.
SLOW_S = 0.010
# Decisions of former schedulers that the policies are brought back by.
MOST_PAST = 128

# A profile's CSV text, and what to call it.
Profile = tuple[str, str]


class SelectorLoop:
    """Decides for the stages of a run. last: the latest verdict by stage; stages without a profile have none.

    switching: carries decisions out. search: finds a profile, once training has begun, in a thread of its
    own. policies: those of a profile's text and name. moving: whether devices of a stage move.
    """

    def __init__(
        self,
        directory: Path,
        monitor: Monitor,
        switching: Switching | None = None,
        search: Callable[[], Profile | None] | None = None,
        policies: Callable[[str, str], Stages] = lambda text, name: Stages({}),
        moving: Callable[[str], bool] = lambda stage: False,
    ) -> None:
        self.last: dict[str, SelectorVerdict] = {}
        self._directory = directory
        self._monitor = monitor
        self._switching = switching
        self._search = search
        self._policies = policies
        self._moving = moving
        self._search_result: Future[Profile | None] | None = None
        self._make: Callable[[], Stages] = lambda: Stages({})
        self._stages = self._make()
        # The step of the last decisions.
        self._decided = 0
        self._file: LineFile | None = None
        # What was logged and is not to be logged again.
        self._logged: set[tuple[str, str]] = set()

    @classmethod
    def open(
        cls,
        config: RunConfig,
        directory: Path,
        monitor: Monitor,
        switching: Switching | None = None,
        devices: Callable[[str], StageDevices] = lambda stage: StageDevices(),
        moving: Callable[[str], bool] = lambda stage: False,
    ) -> SelectorLoop:
        """The run's selector, where a former scheduler left it. Raises ConfigError for a bad profile.

        devices: of a stage, as its workers have reported them. moving: whether devices of a stage move.
        """
        mode, profile = config.scheduler.selector, config.scheduler.profile
        selector = cls(
            directory,
            monitor,
            switching if mode == "on" else None,
            search=None if profile or mode == "static" else partial(kept_profile, config, directory),
            policies=partial(stages_of, config, directory, devices),
            moving=moving,
        )
        if profile and mode != "static":
            selector.begin(*read_profile(profile))
        return selector

    def begin(self, text: str, name: str) -> None:
        """Decides by this profile from now on. Raises ConfigError."""
        self.decide_by(partial(self._policies, text, name))
        with ExpendableFile(self._directory / PROFILE).written():
            scratch = self._directory / f".{PROFILE}.new"
            scratch.write_text(text, encoding="utf-8")
            scratch.replace(self._directory / PROFILE)
        log.info("parallelism of %s is decided by %s", ", ".join(sorted(self._stages.names)), name)

    def decide_by(self, make: Callable[[], Stages]) -> None:
        """Decides with the policies that `make` returns, after the decisions that the run has made."""
        self._make = make
        for mean_tokens in self._restore():
            self._monitor.remember(mean_tokens)
        self._file = LineFile(self._directory / decision_log.NAME)

    def step(
        self,
        committed: int,
        observed: StepFigures,
        *,
        now: float,
        last: bool = False,
        divide: Callable[[], None] = lambda: None,
    ) -> None:
        """Training step `committed` is done: decides for the next one and writes it down.

        now: in monotonic seconds, by which switches begin and layouts are barred. last: there will be no next
        one, and nothing is carried out. divide: decides the division of a pool of devices, after all stages
        were decided for and before that is carried out.
        """
        self._take_profile()
        if self._decided > committed:
            # Rolled back: the steps since, and what was decided for them, have not been.
            self._restore(committed + 1)
        stages = sorted(self._stages.names & observed.stages.keys())
        decided = [self._decide(stage, committed + 1, observed, now) for stage in stages]
        divide()
        for made in decided:
            if made is not None:
                self._conclude(made, observed, now, carried_out=not last)
        self._decided = committed + 1

    def weighed(
        self, stage: str, counts: Sequence[int], slots: float
    ) -> Mapping[int, Sequence[LayoutCandidate]]:
        """The layouts of a stage on each of several numbers of devices, as its policy weighs them after the
        last step; none without a profile. slots: sequences that a device of it works on at once."""
        return self._stages.weigh_each(stage, counts, slots)

    def holds(self, stage: str, layout: Parallelism, context_tokens: float) -> bool:
        """Returns whether a layout of a stage holds one sequence of so many tokens, as far as is known."""
        return self._stages.holds(stage, layout, context_tokens)

    def relieve(self, observed: StepFigures, *, now: float) -> bool | None:
        """A sequence waits for engines that hold it: decides for rollout at once, for the step in progress.

        Returns whether a layout of its devices holds it with all else that is expected; None if there is no
        profile to decide by, or decisions are not carried out.
        """
        if self._switching is None or ROLLOUT not in self._stages.names & observed.stages.keys():
            return None
        made = self._decide(ROLLOUT, max(1, self._decided), observed, now)
        if made is None:
            return False
        self._conclude(made, observed, now, must_fit=True)
        return made[0].fits

    def block(self, parallelism: Parallelism, context_tokens: float) -> None:
        """A sequence of rollout of so many tokens waits, because no engine of that parallelism holds it."""
        self._stages.block(ROLLOUT, parallelism, context_tokens)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    # --- profile and past decisions ---------------------------------------------------------

    def _restore(self, below: float = math.inf) -> Iterable[float]:
        """Brings policies to where the decisions for steps below `below` left them.

        Returns the mean lengths of rollout's steps, in tokens.
        """
        self._stages = self._make()
        past = decision_log.past(read_lines(self._directory / decision_log.NAME), MOST_PAST, below)
        for stage in self._stages.names & past.keys():
            try:
                self._stages.restore(stage, past[stage])
            except EarlError as error:
                log.warning("decisions for %s begin again, the profile is another one: %s", stage, error)
        self._decided = max((decisions[-1].step for decisions in past.values()), default=0)
        return [decision.observed.workload.mean_tokens for decision in past.get(ROLLOUT, ())]

    def _take_profile(self) -> None:
        """Starts the search for a profile, or takes its result."""
        if self._search is None:
            return
        if self._search_result is None:
            executor = ThreadPoolExecutor(1, "profile")
            self._search_result = executor.submit(self._search)
            executor.shutdown(wait=False)
        elif self._search_result.done():
            self._search = None
            try:
                profile = self._search_result.result()
                if profile is not None:
                    self.begin(*profile)
                    return
                reason = "there is no profile of this model on this machine"
            except EarlError as error:
                reason = str(error)
            log.info(
                "no parallelism is decided: %s; measure one with `earl profile`, or name a file with "
                "scheduler.profile",
                reason,
            )

    # --- decisions --------------------------------------------------------------------------

    def _decide(
        self, stage: str, step: int, observed: StepFigures, now: float
    ) -> tuple[SelectorVerdict, float] | None:
        """(the verdict, seconds that it took); None where the profile has no answer."""
        load = observed.stages[stage]
        was = Observed(observed.running[stage], load.workload, load.tokens_per_device_s)
        began_s = time.perf_counter()
        try:
            if self._switching is not None:
                target = self._switching.target(stage) or was.running
                cost_s, barred = self._switching.cost_s(stage), self._switching.barred(stage, now)
                self._stages.synchronise(stage, target, cost_s, barred)
            verdict = self._stages.decide(stage, was, step)
        except EarlError as error:
            if self._is_new(stage, ""):
                log.warning("nothing is decided for %s: %s", stage, error)
            return None
        took_s = time.perf_counter() - began_s
        if took_s > SLOW_S:
            log.warning("deciding for %s took %.1f ms, for which every call waited", stage, took_s * 1e3)
        return verdict, took_s

    def _conclude(
        self,
        made: tuple[SelectorVerdict, float],
        observed: StepFigures,
        now: float,
        *,
        carried_out: bool = True,
        must_fit: bool = False,
    ) -> None:
        """Carries a verdict out, if it is to be, and writes it down."""
        assert self._file is not None
        verdict, took_s = made
        stage, step = verdict.stage, verdict.decision.step
        before = self.last.get(stage)
        if before is None or before.decision.after != verdict.decision.after:
            log.info("step %d: %s", step, verdict.sentence)
        self.last[stage] = verdict
        epoch, held = self._carry_out(verdict, now, must_fit) if carried_out else (0, "")
        if held and self._is_new(stage, held):
            log.info("step %d: %s does not get %s: %s", step, stage, verdict.chosen, held)
        self._file.write(decision_log.encode(verdict, observed, took_s, epoch, held))

    def _carry_out(self, verdict: SelectorVerdict, now: float, must_fit: bool) -> tuple[int, str]:
        """(epoch of the switch that carries the decision out, 0 if none does; the reason, "" if the stage
        has the parallelism already or is on its way there).

        must_fit: only to what fits: elsewhere the sequence that waits for memory would keep waiting.
        """
        if self._switching is None:
            return 0, ""
        stage, decision = verdict.stage, verdict.decision
        if must_fit and not verdict.fits:
            return 0, "no layout holds it"
        target = self._switching.target(stage)
        if target is not None and target.replica == verdict.chosen.replica:
            return 0, ""
        if self._switching.stage(stage).pinned:
            return 0, f"{stage} is pinned"
        if self._moving(stage):
            return 0, "its devices are moving"
        try:
            switch = self._switching.ask(
                stage, verdict.chosen.replica, by=By.SELECTOR, reason=decision.reason, now=now,
                step=decision.step,
            )  # fmt: skip
        except EarlError as error:
            return 0, error.message
        return (switch.epoch if switch is not None else 0), ""

    def _is_new(self, stage: str, text: str) -> bool:
        """Returns whether this was never logged of a stage; it is taken to be, now."""
        new = (stage, text) not in self._logged
        self._logged.add((stage, text))
        return new


def read_profile(key: str) -> Profile:
    """The profile that scheduler.profile names. Raises ConfigError."""
    path = Path(key).expanduser()
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"scheduler.profile = {key!r} cannot be read: {error}",
            "give the CSV file that `earl profile` wrote, or remove the key",
        ) from None


def kept_profile(config: RunConfig, directory: Path) -> Profile | None:
    """The profile that `earl profile` has kept for the run's model and settings on this machine, all stages.

    Identifies the hardware, so it may take seconds. Raises ModelNotFound, and as facts_of.
    """
    spec = load_spec(directory / "model")
    caches = [cache_of(stage, config, spec) for stage in STAGES]
    rows = [row for cache in caches for row in cache.rows()]
    return (dump(rows), f"what earl profile kept in {caches[0].path.parent}") if rows else None


def stages_of(
    config: RunConfig, directory: Path, devices: Callable[[str], StageDevices], text: str, name: str
) -> Stages:
    """A policy and its table for each stage that a profile has rows of. Raises ConfigError.

    devices: of a stage, as its workers have reported them.
    """
    rows, layouts = parse(text, name), LegalLayouts(config, directory)

    def legal(stage: str, devices: int) -> set[Replica]:
        return {layout.replica for layout in layouts.legal(stage, [devices])}

    pooled = pooled_stages(config) if config.stack.pool_devices else ()
    tables = {
        stage: LimitedTable(
            rows,
            stage,
            memory_of(config, directory, stage, devices),
            holds=layouts.holds(stage),
            longest=layouts.longest,
            fits=None if config.pace is None else partial(config.pace.fits, stage),
            # A stage of a pool is one worker, and has now these devices, now others.
            legal=partial(legal, stage) if stage in pooled else None,
        )
        for stage in sorted({row.stage for row in rows})
    }
    cost_s = config.scheduler.switch_cost_s
    return Stages({stage: partial(EarlPolicy, table, cost_s) for stage, table in tables.items()}, tables)
