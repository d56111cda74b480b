"""The program of a run: which phase it is in, what to issue for it, which batch comes next.

    warmup ─► evaluate:start ─► train (evaluations every n steps between) ─► evaluate:final ─► done

Pure, and without a state of its own: every committed batch makes one version, so the step of each
phase follows from the version; whatever moves the version (commit, reconcile) moves the program.

A version that is being evaluated stays the newest until that has ended: no batch is planned, so every
token of an evaluation is that version's. Rollout plays training's tickets meanwhile.

Tickets of the i-th outstanding group of training are made for the batch of version t = V + i // B,
so they ask for min_version = t − k: exactly the current version if k is 0, and no group is ever
trained more than k versions after its oldest token (see admission). What is dropped leaves its place in
the schedule, and a group with the same seeds is issued for it. In a deterministic run t follows from the
group's place alone, and version t − k samples every token: the plan, and not time, decides who samples what.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import count, islice

import msgspec

from services.scheduler.ledger.admission import places, target_version
from services.scheduler.ledger.evaluation import FINAL as FINAL_NAME
from services.scheduler.ledger.evaluation import in_progress
from services.scheduler.ledger.groups import is_full
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.monitor.step_clock import Doing, StepWork
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.mixture import (
    batch_episodes,
    evaluated_tasks,
    group_size_at,
    is_frozen_at,
    issued_size_at,
)
from services.scheduler.state.rules import Rules
from services.scheduler.state.run import Batch
from services.scheduler.state.tickets import Purpose, Reason, TicketState

# Tickets that are issued in one go: calls that came meanwhile are answered before the next ones.
ISSUED_AT_ONCE = 256
WARMUP, START, TRAIN, FINAL, DONE = "warmup", "evaluate:start", "train", "evaluate:final", "done"


def steps_done(ledger: Ledger) -> int:
    """Batches in the parameters, of warm-up and training together."""
    return max(0, ledger.tables.run.version - 1)


def training_steps(ledger: Ledger) -> int:
    """Batches of training in the parameters."""
    return max(0, steps_done(ledger) - ledger.rules.warmup_batches)


def phase(ledger: Ledger) -> str:
    """The phase that the ledger is in."""
    rules, tables = ledger.rules, ledger.tables
    done = steps_done(ledger)
    if done < rules.warmup_batches:
        return WARMUP
    evaluates = rules.evaluation_episodes > 0 and rules.evaluate_at_start
    if evaluates and done == rules.warmup_batches and not _is_finished(ledger, "start"):
        return START
    if done < rules.warmup_batches + rules.steps and not tables.run.train_over:
        return TRAIN
    if _wants_final(ledger) and not _final_done(ledger):
        return FINAL
    return DONE if all(evaluation.finished for evaluation in tables.evaluations.values()) else FINAL


def step(ledger: Ledger) -> tuple[int, int]:
    """(batches done, batches planned) of the current phase; episodes for an evaluation."""
    rules, now, done = ledger.rules, phase(ledger), steps_done(ledger)
    if now == WARMUP:
        return done, rules.warmup_batches
    if now.startswith("evaluate:"):
        evaluation = ledger.tables.evaluations.get(now.removeprefix("evaluate:"))
        if evaluation is not None:
            return evaluation.done + evaluation.failed, evaluation.episodes
        return 0, rules.evaluation_episodes
    return min(done - rules.warmup_batches, rules.steps), rules.steps


def work(ledger: Ledger) -> StepWork | None:
    """The part of its step that the run is in; None before a trainer is there, and once all is done."""
    rules, tables, version = ledger.rules, ledger.tables, ledger.tables.run.version
    if tables.batch is not None:
        return StepWork(Doing.TRAINING, version, _episodes_of(ledger, tables.batch), tables.batch.purpose)
    if not version:
        return None
    evaluation = in_progress(tables.evaluations.values(), version)
    if evaluation is not None:
        return StepWork(Doing.EVALUATING, version, evaluation.episodes, Purpose.EVALUATE)
    phase_name = phase(ledger)
    if phase_name == WARMUP:
        first = steps_done(ledger) * rules.warmup_episodes
        episodes = batch_episodes(rules, Purpose.WARMUP, first)
        return StepWork(Doing.PLAYING, version, episodes, Purpose.WARMUP)
    if phase_name == TRAIN:
        first = training_steps(ledger) * rules.batch_groups
        episodes = batch_episodes(rules, Purpose.TRAIN, first)
        return StepWork(Doing.PLAYING, version, episodes, Purpose.TRAIN)
    return None


def episodes_played(ledger: Ledger) -> int:
    """Episodes of the batch to come that have been played: of the groups that are furthest, for those may go
    ahead, and of those that no batch may leave out. A match is one episode."""
    rules, tables, version = ledger.rules, ledger.tables, ledger.tables.run.version
    warms_up = phase(ledger) == WARMUP
    purpose = Purpose.WARMUP if warms_up else Purpose.TRAIN
    groups, whole, staleness = tables.groups[purpose], tables.whole[purpose], rules.staleness

    def may_be_left_out(group: int) -> bool:
        if group in whole or not staleness:  # without staleness no group of a later batch has been played
            return True
        return all(tables.tickets[number].floor + staleness > version for number in groups[group])

    def order(group: int) -> tuple[bool, int]:
        if warms_up or rules.deterministic:
            return False, tables.place(purpose, group)
        return may_be_left_out(group), -tables.ready[group]

    count = rules.warmup_episodes if warms_up else rules.batch_groups
    furthest = sorted(groups, key=order)[:count]
    if _plays_alone(rules):
        return sum(tables.ready[group] for group in furthest)
    return sum(tables.ready[group] // len(tables.tickets[groups[group][0]].match) for group in furthest)


def _plays_alone(rules: Rules) -> bool:
    """Returns whether every episode has one ticket: the policy has one seat in each environment."""
    return all(share.seats == 1 for share in rules.mixture)


def _episodes_of(ledger: Ledger, batch: Batch) -> int:
    """The episodes of a planned batch: fewer than its tickets where the policy plays several seats."""
    if _plays_alone(ledger.rules):
        return len(batch.tickets)
    tickets = map(ledger.tables.tickets.__getitem__, batch.tickets)
    return sum(ticket.id == ticket.match.start for ticket in tickets)


def episodes_evaluated(ledger: Ledger) -> int:
    """Episodes that have ended of the evaluation that the trainer waits for."""
    evaluation = in_progress(ledger.tables.evaluations.values(), ledger.tables.run.version)
    return evaluation.done + evaluation.failed if evaluation is not None else 0


def ending_reason(ledger: Ledger) -> str:
    """Describes why training has ended: all steps, or the time limit and the steps trained until then."""
    rules = ledger.rules
    done = min(steps_done(ledger) - rules.warmup_batches, rules.steps)
    if not rules.steps:
        return f"{rules.evaluation_episodes} episodes are evaluated"
    if done >= rules.steps:
        return f"all {rules.steps} steps are trained"
    return (
        f"the time limit of {rules.train_limit_s:g} s (scheduler.train_limit_s) was reached after "
        f"{done} of {rules.steps} steps"
    )


def advance(ledger: Ledger, elapsed_s: float) -> bool:
    """Issues what is due and drops what no phase wants any more; whether more is due at once.

    elapsed_s: of the whole run.
    """
    more = False
    rules, tables, run = ledger.rules, ledger.tables, ledger.tables.run
    _keep_earlier_final(ledger)
    if phase(ledger) == TRAIN and run.version:
        if run.train_began_s is None:
            run.train_began_s = elapsed_s
        limit_reached = 0 < rules.train_limit_s <= elapsed_s - run.train_began_s
        if limit_reached and tables.batch is None:
            run.train_over = True
        elif not limit_reached:
            _evaluate_between(ledger)  # first, for the trainer waits for it
            more = _issue_training(ledger)
    now = phase(ledger)
    _drop_unwanted(ledger, now)
    if now == WARMUP:
        more = _issue_warmup(ledger)
    elif (now == START or (now == FINAL and _wants_final(ledger))) and run.version:
        _evaluate(ledger, now.removeprefix("evaluate:"), rules.evaluation_episodes)
    return more


def resume(ledger: Ledger, elapsed_s: float) -> None:
    """Brings what was stored to the run file as it is now. elapsed_s: of the whole run.

    A run that its time limit ended continues if the limit is another now. Groups that were issued with the
    other kind of opponent, or in a deterministic run for an older version than the plan has for their places,
    are dropped, and issued again. Those that have all that is trained of them now are closed.
    """
    rules, run = ledger.rules, ledger.tables.run
    spent_s = elapsed_s - (run.train_began_s or 0.0)
    if run.train_over and not 0 < rules.train_limit_s <= spent_s:
        run.train_over = False
    oldest: dict[int, int] = {}
    if rules.deterministic:
        live = [ledger.tables.place(Purpose.TRAIN, group) for group in ledger.tables.groups[Purpose.TRAIN]]
        oldest = {
            place: _oldest(rules, target) for place, target in zip(live, _plan(ledger, live), strict=True)
        }
    for group, members in list(ledger.tables.groups[Purpose.TRAIN].items()):
        tickets = [ledger.tables.tickets[number] for number in members]
        planned = any(ticket.state is TicketState.PLANNED for ticket in tickets)
        if not planned and tickets[0].frozen != is_frozen_at(rules, Purpose.TRAIN, tickets[0].index):
            ledger.attempts.drop_group(Purpose.TRAIN, group, Reason.OPPONENT_CHANGED)
        elif not planned and tickets[0].min_version < oldest.get(tickets[0].index, 0):
            ledger.attempts.drop_group(Purpose.TRAIN, group, Reason.TOO_STALE)
        elif is_full(rules, ledger.tables, tickets[0]):
            ledger.attempts.close_group(group)


def next_batch(ledger: Ledger, elapsed_s: float) -> Batch | None:
    """The batch in the trainer's hands, or a new one if it is complete, or None: wait."""
    batch = ledger.hand_out_planned()
    if batch is not None:
        return batch
    advance(ledger, elapsed_s)
    now, (done, planned) = phase(ledger), step(ledger)
    if now not in (WARMUP, TRAIN) or not ledger.tables.run.version:
        return None
    if in_progress(ledger.tables.evaluations.values(), ledger.tables.run.version) is not None:
        return None
    rules, last = ledger.rules, done + 1 == planned
    if now == WARMUP:
        return ledger.plan(
            Purpose.WARMUP, rules.warmup_episodes, publish=last, progress=done / planned,
            first_of_phase=done == 0,
            checkpoint=last and (rules.checkpoint_every > 0 or _evaluated_after(ledger, now, done + 1)),
        )  # fmt: skip
    every = rules.checkpoint_every
    progress = done / planned
    if rules.train_limit_s > 0:
        spent_s = elapsed_s - (ledger.tables.run.train_began_s or 0.0)
        progress = min(1.0, max(progress, spent_s / rules.train_limit_s))
    return ledger.plan(
        Purpose.TRAIN, rules.batch_groups, publish=True, progress=progress, first_of_phase=done == 0,
        checkpoint=last or (every > 0 and (done + 1) % every == 0)
        or _evaluated_after(ledger, now, done + 1),
    )  # fmt: skip


def _is_finished(ledger: Ledger, name: str) -> bool:
    evaluation = ledger.tables.evaluations.get(name)
    return evaluation is not None and evaluation.finished


def _final_done(ledger: Ledger) -> bool:
    """Returns whether the version that the run ends with was judged last."""
    evaluation = ledger.tables.evaluations.get(FINAL_NAME)
    return evaluation is not None and evaluation.finished and evaluation.version == ledger.tables.run.version


def _keep_earlier_final(ledger: Ledger) -> None:
    """A run that is continued with more steps judged an earlier version last: that becomes one in between."""
    tables = ledger.tables
    if not _is_finished(ledger, FINAL_NAME) or _final_done(ledger) or not tables.run.version:
        return
    earlier = tables.evaluations.pop(FINAL_NAME)
    name = f"step-{earlier.version - 1 - ledger.rules.warmup_batches}"
    if name not in tables.evaluations:
        tables.evaluations[name] = msgspec.structs.replace(earlier, name=name)


def _wants_final(ledger: Ledger) -> bool:
    return ledger.rules.evaluation_episodes > 0 and ledger.rules.evaluate_at_end


def _issue_warmup(ledger: Ledger) -> bool:
    """Returns whether more tickets are due."""
    vacant = _vacant(ledger, Purpose.WARMUP)
    for index in vacant[:ISSUED_AT_ONCE]:
        size = group_size_at(ledger.rules, Purpose.WARMUP, index)
        ledger.attempts.issue(Purpose.WARMUP, size, 0, ledger.rules.temperature, index=index)
    return len(vacant) > ISSUED_AT_ONCE


def _issue_training(ledger: Ledger) -> bool:
    """Returns whether more tickets are due."""
    rules = ledger.rules
    vacant = _vacant(ledger, Purpose.TRAIN)
    episodes = max(share.group_size or rules.group_size for share in rules.mixture) + rules.extra_episodes
    largest = episodes * max(share.trained_seats for share in rules.mixture)
    at_once = math.ceil(ISSUED_AT_ONCE / largest)
    for index, target in islice(zip(vacant, _targets(ledger, vacant), strict=True), at_once):
        size = issued_size_at(rules, Purpose.TRAIN, index)
        ledger.attempts.issue(Purpose.TRAIN, size, _oldest(rules, target), rules.temperature, index=index)
    return len(vacant) > at_once


def _targets(ledger: Ledger, vacant: Sequence[int]) -> list[int]:
    """The versions at which groups that are issued at vacant places are trained, at the latest."""
    rules, outstanding = ledger.rules, len(ledger.tables.groups[Purpose.TRAIN])
    if rules.deterministic:
        return _plan(ledger, vacant)
    return [
        target_version(ledger.tables.run.version, outstanding + number, rules.batch_groups)
        for number in range(len(vacant))
    ]


def _plan(ledger: Ledger, indices: Sequence[int]) -> list[int]:
    """The versions at which the groups at these places are trained if each batch takes the next places.

    Whoever issues them, and issues them again, finds the same.
    """
    tables = ledger.tables
    live = [tables.place(Purpose.TRAIN, group) for group in tables.groups[Purpose.TRAIN]]
    order = sorted({*live, *_vacant(ledger, Purpose.TRAIN)})
    ahead = [bisect_left(order, index) for index in indices]
    return [target_version(tables.run.version, count, ledger.rules.batch_groups) for count in ahead]


def _oldest(rules: Rules, target: int) -> int:
    """The oldest version that may sample what is trained at `target`, and the only one in a deterministic
    run. Never one that warm-up passed through: those are not published."""
    return max(target - rules.staleness, rules.warmup_batches + 1)


def _vacant(ledger: Ledger, purpose: Purpose) -> list[int]:
    """Places to issue groups for now, lowest first.

    Those of the window that neither a live group nor a trained one has. Whoever resumed with other batch
    sizes finds trained groups beyond it: then as many places after those.
    """
    tables = ledger.tables
    window = places(ledger.rules, purpose, tables.run.version)
    missing = len(window) - len(tables.groups[purpose])
    if missing <= 0:
        return []
    taken = tables.taken[purpose]
    return list(islice((index for index in count(window.start) if index not in taken), missing))


def _evaluated_after(ledger: Ledger, now: str, done: int) -> bool:
    """Returns whether the version after `done` batches of a phase is evaluated: it may prove the best.

    The final evaluation needs nothing of this: the last batch has a checkpoint anyway.
    """
    rules = ledger.rules
    if not rules.keep_best or rules.evaluation_episodes < 1:
        return False
    if now == WARMUP:
        return done == rules.warmup_batches and rules.evaluate_at_start
    return _is_between(rules, done)


def _is_between(rules: Rules, done: int) -> bool:
    """Returns whether training is evaluated after its first `done` batches, and continues."""
    every = rules.evaluate_every_steps
    return rules.evaluation_episodes > 0 and every > 0 and 0 < done < rules.steps and done % every == 0


def _evaluate_between(ledger: Ledger) -> None:
    rules = ledger.rules
    done = steps_done(ledger) - rules.warmup_batches
    if _is_between(rules, done):
        _evaluate(ledger, f"step-{done}", rules.evaluate_every_episodes or rules.evaluation_episodes)


def _evaluate(ledger: Ledger, name: str, episodes: int) -> None:
    """Starts an evaluation unless it exists."""
    tables, rules, version = ledger.tables, ledger.rules, ledger.tables.run.version
    if name in tables.evaluations:
        return
    tasks = [len(evaluated_tasks(rules, share)) for share in rules.mixture]
    tables.evaluations[name] = EvaluationRecord(
        name=name,
        version=version,
        episodes=episodes,
        setting=rules.evaluation_setting,
        environments=[share.label for share in rules.mixture if share.label],
        tasks=tasks if any(tasks) else [],
        protected={share.label: share.lowest for share in rules.mixture if share.protected},
        protected_loss=rules.protected_loss if any(share.protected for share in rules.mixture) else 0.0,
    )
    issue, temperature = ledger.attempts.issue, rules.evaluation_temperature
    for index in range(episodes):
        issue(Purpose.EVALUATE, 1, version, temperature, index=index, evaluation=name)


def _drop_unwanted(ledger: Ledger, now: str) -> None:
    tables = ledger.tables
    for purpose, issued in ((Purpose.WARMUP, now == WARMUP), (Purpose.TRAIN, now == TRAIN)):
        if issued:
            continue
        for group, members in list(tables.groups[purpose].items()):
            if not any(tables.tickets[number].state is TicketState.PLANNED for number in members):
                ledger.attempts.drop_group(purpose, group, Reason.PHASE_OVER)
