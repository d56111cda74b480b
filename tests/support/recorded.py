"""A run's directory as the scheduler writes it, made in milliseconds: its real writers, invented numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.draft_figures import step_figures
from earl.transcript import Sampled, TranscriptTurn
from earl.worker_report import BusySpan, TransferTotals
from services.rollout.engines.contract.draft_counts import DraftCounts
from services.scheduler.batches.batch_plan import summary
from services.scheduler.batches.columns import ColumnProgress
from services.scheduler.files.endings import Endings
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.files.samples import SampleFile
from services.scheduler.monitor.workload import Monitor
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.run import Batch, CommittedBatch
from services.scheduler.state.tickets import EpisodeEnding, EpisodeResult, Purpose, Ticket
from services.scheduler.state.workers import WorkerRecord
from tests.support.selection import selecting

TICTACTOE = Path(__file__).resolve().parents[2] / "examples" / "tictactoe.toml"
TASKS = 64


def evaluation(
    name: str,
    version: int,
    rewards: Sequence[float | None],
    environments: Sequence[str] = (),
    *,
    winners: bool = True,
) -> EvaluationRecord:
    """An evaluation with these rewards by instance; None for an episode that failed."""
    result = EvaluationRecord(
        name=name, version=version, episodes=len(rewards), environments=list(environments)
    )
    for index, reward in enumerate(rewards):
        if reward is None:
            result = result.with_failure()
        else:
            metrics = {"win": float(reward > 0)} if winners else {}
            result = result.with_result(index, EpisodeResult(reward=reward, metrics=metrics))
    return result


def recorded(
    directory: Path,
    *,
    steps: int = 12,
    text: str = "12 + 30 = ?",
    overrides: Sequence[tuple[str, str]] = (),
    seed: int = 0,
    layout: tuple[int, int, int, int] = (2, 1, 1, 1),
    environments: Sequence[str] = (),
    winners: bool = True,
    drafts: bool = False,
) -> None:
    """`steps` training steps after two of warm-up, evaluations before and after, conversations of `text`
    (STEP: the step's number), and decisions for a rollout that is cut so and would be cut otherwise from a
    mean of 100 tokens on; in the last three steps episodes are truncated, and in the last one an engine runs
    out of memory.

    environments: labels of a mixture, each with twice the weight of the one before; of the last the
    policy plays two seats. winners: False for an environment that has rewards alone, where nothing is won or
    lost. drafts: of each step's 1,000 steps of sequences 800 draft a token, of which 500 are accepted."""
    draw = random.Random(seed)
    config = load_run(TICTACTOE, [("warmup.batches", "2"), *overrides])
    if environments:
        config = mixed(config, environments)
    (directory / "run.json").write_text(config.model_dump_json())
    report, samples = RunReport(directory), SampleFile(directory / "samples.jsonl")
    endings = Endings(directory)
    levels = [draw.random() for _ in range(TASKS)]
    number = 0

    def judged(name: str, step: int) -> EvaluationRecord:
        nonlocal number
        rewards = [float(draw.random() < level * (0.4 + step / steps * 0.6)) for level in levels]
        for index in (0, TASKS - 1):
            number += 1
            one = ticket(number, Purpose.EVALUATE, index, step + 3, rewards[index], name)
            samples.observe(
                step, one, one.result or EpisodeResult(), talk(numbered(text, step), rewards[index])
            )
        return evaluation(name, step + 3, rewards, environments, winners=winners)

    evaluations = [judged("start", 0)]
    report.evaluations(evaluations, 5.0)
    monitor = Monitor()
    monitor.reported("rollout", "rollout-0", {}, 1)
    selection = selecting(directory)
    members = (
        WorkerRecord(name="rollout-0", incarnation=1, stage=1, parallelism=layout),
        WorkerRecord(name="trainer", incarnation=1, stage=3),
    )
    stages = {"reference": ColumnProgress(12, 4, 48)} if config.trainer.uses_reference else {}
    for step in range(1, steps + 1):
        tokens = [max(4, round(draw.lognormvariate(4 + 0.1 * step, 0.4))) for _ in range(64)]
        monitor.playing(32, 10.0 * step - 8)
        truncated = max(0, step - steps + 3)
        for at, count in enumerate(tokens):
            monitor.observe(count, [count])
            endings.count(
                EpisodeResult(ending=EpisodeEnding.TRUNCATED if at < truncated else EpisodeEnding.OK),
                environments[at % len(environments)] if environments else "",
            )
        if step == steps:
            endings.count(
                EpisodeResult(
                    ending=EpisodeEnding.INFRA_ERROR, message="EngineOutOfMemory: engine 0 is gone"
                ),
                environments[0] if environments else "",
            )
        endings.write(10.0 * step)
        monitor.playing(0, 10.0 * step - 2)
        transfers = TransferTotals(path="shm", size_bytes=1 << 20, seconds=0.001, transfers=64, retries=1)
        if drafts:
            drafted = DraftCounts(1000 * step, 1500 * step)
            drafted.draft("task", 600 * step, 450 * step)
            drafted.draft("context", 200 * step, 50 * step)
            monitor.reported("rollout", "rollout-0", drafted.figures(), 1)
        counters = monitor.counters
        seen = monitor.step(
            workers=members, device_slots=16, batch_tokens=tokens, now_s=10.0 * step,
            trainer={"train_tokens_per_s": 5000.0, "memory_fraction": 0.4},
        )  # fmt: skip
        number += 1
        one = ticket(number, Purpose.TRAIN, step, step + 2, 1.0)
        samples.observe(step - 1, one, one.result or EpisodeResult(), talk(numbered(text, step), 1.0))
        samples.trained(step, [one.id])
        report.step(
            step=step, phase="train", version=step + 3, time_s=10.0 * step,
            trajectories={
                "reward_mean": step / steps, **({"win_rate": step / steps} if winners else {}),
                "tokens": float(sum(tokens)),
                "length_mean": sum(tokens) / 64, "length_max": float(max(tokens)),
                "trained_tokens": sum(tokens) / 2, "truncated_episodes": float(truncated),
                "staleness_mean": 0.5, "staleness_max": 1.0,
                **figures_of(environments, step, tokens),
            },
            trainer={"loss": 0.1, "logprob_mismatch": 0.002 * draw.random(), "kl_behaviour": 1e-4,
                     "kl_reference": 0.001 * step, "entropy": 1.0, "grad_norm": 0.5,
                     **counters.totals, **step_figures(counters.take())},
            observed=seen, length_tokens=tokens, transfers=[transfers],
            ledger={"issued": 64 * step}, stages=stages,
        )  # fmt: skip
        report.spans("trainer", [BusySpan("step", 10**9 * 10 * step - 10**9, 10**9 * 10 * step)])
        selection.step(step, seen, now=10.0 * step)
    evaluations.append(judged("final", steps))
    report.evaluations(evaluations, 10.0 * steps + 5)
    report.close()
    endings.close(10.0 * steps + 5)
    samples.close()
    selection.close()
    result = {"seconds": 60.0, "run_seconds": 125.0, "best_version": steps + 3}
    (directory / "result.json").write_text(json.dumps(result))


def mixed(config: RunConfig, environments: Sequence[str]) -> RunConfig:
    """The run with a mixture of its environment under these labels."""
    given = config.model_dump()
    section = given.pop("environment")
    sections = [
        section | {"label": label, "weight": float(2**place), "seats": 1 + (place == len(environments) - 1)}
        for place, label in enumerate(environments)
    ]
    return RunConfig.model_validate(given | {"environments": sections})


def figures_of(environments: Sequence[str], step: int, tokens: Sequence[int]) -> dict[str, float]:
    """The figures of each environment of a step whose trajectories play them in turns, the last one in two
    seats."""
    if not environments:
        return {}
    labels = [environments[place % len(environments)] for place in range(len(tokens))]
    results = [
        EpisodeResult(
            reward=float(label != environments[0]), total_tokens=count, trained_tokens=4,
            oldest_version=step + 2 - (label == environments[0]), metrics={"win": float(place % 3 == 0)},
        )
        for place, (label, count) in enumerate(zip(labels, tokens, strict=True))
    ]  # fmt: skip
    seats = [
        place // len(environments) % 2 if label == environments[-1] else 0
        for place, label in enumerate(labels)
    ]
    batch = Batch(
        id=step, version=step + 2, purpose=Purpose.TRAIN, tickets=list(range(len(results))), publish=True,
        checkpoint=False, progress=0.0, first_of_phase=False,
    )  # fmt: skip
    every = summary(CommittedBatch(batch, results, labels, seats))
    return {name: value for name, value in every.items() if name.startswith(("environments.", "seats."))}


def ticket(
    number: int, purpose: Purpose, index: int, version: int, reward: float, evaluation: str = ""
) -> Ticket:
    return Ticket(
        id=number, group=number, purpose=purpose, index=index, env_seed=1, sample_seed=1, min_version=1,
        temperature=1.0, evaluation=evaluation, transcript=True,
        result=EpisodeResult(reward=reward, total_tokens=40, oldest_version=version, newest_version=version),
    )  # fmt: skip


def numbered(text: str, step: int) -> str:
    """The text with the step's number in place of STEP."""
    return text.replace("STEP", str(step))


def sampled(text: str) -> tuple[Sampled, ...]:
    """Its words, each less likely than the one before, from the second on of the next version."""
    words = text.split()
    return tuple(Sampled(7 + at, word, -0.9 * at, 3 + (at > 1)) for at, word in enumerate(words))


def talk(text: str, reward: float) -> list[TranscriptTurn]:
    return [
        TranscriptTurn("system", "Answer with a number.", 8),
        TranscriptTurn("user", text, 9),
        TranscriptTurn("assistant", "<tool>12 + 30</tool>", 7, sampled("<tool> 12 + 30 </tool>")),
        TranscriptTurn("tool", "42", 2),
        TranscriptTurn("assistant", "42" if reward > 0 else "", 3),
    ]
