"""Explain the decisions of a run's selector: workload, candidates, verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from earl.cli.lib.decisions import FILE, DecisionRecord, RecordedCandidate, changes, read_decisions
from earl.cli.lib.find_run import RunDir, pick_run
from earl.cli.lib.run_services import run_json_of
from earl.cli.lib.splits import moves_listed, read_splits, split_lines, splits_at
from earl.cli.lib.switches import REQUESTED_BY, RecordedSwitch, read_switches, switch_text
from earl.cli.lib.wrapped import print_wrapped
from earl.cli.show.unexplained import measured_workloads, outlook, reason_for_none, unexplained_lines
from earl.errors import ConfigError
from earl.parallelism import Parallelism

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: earl explain growing-context --stage rollout --step 12")
def explain(
    run: RunDir = None,
    step: Annotated[int | None, typer.Option(help="Training step decided for; else the last.")] = None,
    stage: Annotated[str, typer.Option(help="rollout, reference or trainer; else all.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object.")] = False,
) -> None:
    """Explain the decisions of a run's selector: workload, candidates, verdict.

    A decision for a step is taken after the step before it, from that step's workload. Without --step:
    the last decision, and the steps at which the verdict changed. Without decisions: the reason, what
    was measured, and what a profile would measure and could decide. Works while the run is running.
    """
    run_dir = pick_run(run, ended=True)
    run_json = run_json_of(run_dir)
    splits = [] if stage else read_splits(run_dir)
    if splits and not read_decisions(run_dir):
        chosen = splits_at(splits, step)
        if as_json:
            print(json.dumps({"decisions": [], "changes": {}, "splits": chosen}))
        else:
            print_wrapped("\n".join([*split_lines(chosen[0]), "", *moves_listed(splits)]).strip())
        return
    if not read_decisions(run_dir) and step is None:
        ahead = outlook(run_dir)
        if as_json:
            workloads = {
                name: _plain(of) for name, of in measured_workloads(run_dir).items() if stage in ("", name)
            }
            reasons = {"decisions": [], "reason": reason_for_none(run_json)}
            print(json.dumps({**reasons, "measured": workloads, "profile": ahead}))
        else:
            print_wrapped("\n".join(unexplained_lines(run_dir, run_json, stage, ahead)))
        return
    decided = chosen_decisions(run_dir, stage)
    shown = [decision_at(lines, step, run_dir) for lines in decided.values()]
    ended = {(switch.stage, switch.epoch): switch for switch in read_switches(run_dir)}
    if as_json:
        explained = as_object(shown, decided if step is None else {}, ended)
        print(json.dumps(explained | ({"splits": splits_at(splits, step)} if splits else {})))
        return
    parts = ["\n".join(decision_lines(line, ended.get((line.stage, line.epoch)))) for line in shown]
    if splits:
        parts.append("\n".join(split_lines(splits_at(splits, step)[0])))
    if step is None:
        parts.append("\n".join(change_lines(decided)))
        parts.append("\n".join(switch_lines(ended.values(), stage)))
    print_wrapped("\n\n".join(filter(None, parts)))


def chosen_decisions(run_dir: Path, stage: str) -> dict[str, list[DecisionRecord]]:
    """The decisions to explain, by stage. Raises ConfigError: no run, or none were taken."""
    decided = read_decisions(run_dir)
    if not decided:
        reason = reason_for_none(run_json_of(run_dir))
        raise ConfigError(f"{run_dir} has no decisions ({FILE}): {reason}", "leave --step out")
    if not stage:
        return decided
    if stage not in decided:
        raise ConfigError(
            f"{run_dir} has no decisions for stage {stage!r}", f"it has some for {', '.join(sorted(decided))}"
        )
    return {stage: decided[stage]}


def _plain(workload: Mapping[str, object]) -> dict[str, object]:
    return {key: str(value) if isinstance(value, Parallelism) else value for key, value in workload.items()}


def decision_at(lines: Sequence[DecisionRecord], step: int | None, run_dir: Path) -> DecisionRecord:
    """The decision for a step, the last one for None. Raises ConfigError naming the steps that there are."""
    if step is None:
        return lines[-1]
    decision = next((line for line in lines if line.step == step), None)
    if decision is None:
        raise ConfigError(
            f"{run_dir} has no decision for {lines[0].stage} at step {step}",
            f"it has some for steps {lines[0].step} to {lines[-1].step}",
        )
    return decision


def as_object(
    shown: Sequence[DecisionRecord],
    decided: Mapping[str, Sequence[DecisionRecord]],
    ended: Mapping[tuple[str, int], RecordedSwitch],
) -> dict[str, object]:
    """{"decisions": lines as in decisions.jsonl, each with the switch that carried it out or null, "changes":
    where verdicts changed, by stage}."""

    def switch_of(line: DecisionRecord) -> dict[str, object] | None:
        switch = ended.get((line.stage, line.epoch))
        return switch.as_json() if switch is not None else None

    return {
        "decisions": [{**line.model_dump(mode="json"), "switch": switch_of(line)} for line in shown],
        "changes": {
            stage: [{"step": line.step, **line.verdict.model_dump(mode="json")} for line in changes(lines)]
            for stage, lines in decided.items()
        },
    }


# --- as text --------------------------------------------------------------------------------


def decision_lines(line: DecisionRecord, switch: RecordedSwitch | None = None) -> Iterable[str]:
    """One decision as an engineer reads it. switch: that carried it out, if it has ended."""
    yield f"{line.stage}, step {line.step} (decided after step {line.step - 1}, {_devices(line.devices)})"
    yield f"  {line.sentence}"
    if outcome_text := outcome(line, switch):
        yield f"  {outcome_text}"
    yield ""
    yield from aligned(workload_rows(line), "<>>")
    yield f"  {'; '.join(other_measurements(line))}"
    yield ""
    order = sorted(
        line.candidates, key=lambda candidate: (not candidate.fits, candidate.step_s or float("inf"))
    )
    rows = [("parallelism", "tokens/s/device", "step", "memory", "")]
    rows += [candidate_row(candidate, line) for candidate in order]
    yield from aligned(rows, "<>>><")
    yield ""
    yield f"  {'; '.join(grounds(line))}"


def outcome(line: DecisionRecord, switch: RecordedSwitch | None) -> str:
    """Describes the outcome of a decision in a sentence; "" where there was nothing to do."""
    if switch is not None:
        return f"{line.stage} {switch_text(switch)}"
    if line.epoch:
        return f"carried out as epoch {line.epoch}, which has not ended"
    return f"not carried out: {line.held}" if line.held else ""


def workload_rows(line: DecisionRecord) -> list[tuple[str, ...]]:
    measured, expected = line.seen, line.expected
    most = (
        f" (most {measured.concurrency_most:.4g})"
        if measured.concurrency_most > measured.concurrency * 1.005
        else ""
    )
    rows = [
        ("mean tokens", f"{measured.mean_tokens:,.0f}", expected and f"{expected.mean_tokens:,.0f}"),
        ("95th percentile", f"{measured.p95_tokens:,.0f}", expected and f"{expected.p95_tokens:,.0f}"),
        ("longest", f"{measured.max_tokens:,.0f}", expected and f"{expected.max_tokens:,.0f}"),
        (
            "sequences at once",
            f"{measured.concurrency:.4g}{most}",
            expected and f"{expected.concurrency:.4g}",
        ),
    ]
    head = ("workload", "measured", "expected" if expected else "")
    return [head, *((name, value, other or "") for name, value, other in rows)]


def other_measurements(line: DecisionRecord) -> Iterable[str]:
    """Describes measurements other than the workload."""
    measured = line.seen
    yield f"growth {line.growth:+.1%} per step"
    if measured.tokens_per_device_s is not None:
        yield f"{measured.tokens_per_device_s:,.0f} tokens/s per device measured"
    if measured.memory_fraction is not None:
        yield f"{measured.memory_fraction:.0%} of the fullest device's memory"
    if measured.kv is not None:
        yield f"KV {measured.kv.used_fraction:.0%} of {measured.kv.total_tokens:,.0f} tokens"


def candidate_row(candidate: RecordedCandidate, line: DecisionRecord) -> tuple[str, ...]:
    marks = [] if candidate.fits else [f"does not fit: {candidate.why}" if candidate.why else "does not fit"]
    if candidate.source == "extrapolated":
        marks.append("extrapolated beyond the profile")
    if candidate.parallelism.replica == line.verdict.after.replica:
        marks.insert(0, "chosen")
    if candidate.parallelism.replica == line.running.replica:
        marks.insert(0, "running")
    return (
        str(candidate.parallelism),
        _number(candidate.tokens_per_device_s) if candidate.tokens_per_device_s else "unknown",
        f"{_number(candidate.step_s)} s" if candidate.step_s is not None else "",
        f"{candidate.memory_fraction:.0%}" if candidate.memory_fraction is not None else "unknown",
        ", ".join(marks),
    )


def grounds(line: DecisionRecord) -> Iterable[str]:
    """Describes the grounds of the verdict."""
    verdict = line.verdict
    if verdict.urgent:
        yield "urgent: switched without a payback"
    elif verdict.saving_s:
        steps = f", over {verdict.horizon_steps:.3g} steps" if verdict.horizon_steps else ""
        yield f"{verdict.saving_s:.3g} s saved per step{steps}"
    if line.headroom:
        yield f"a layout must hold {line.headroom}"
    if abs(line.correction - 1.0) > 0.005:
        yield f"the profile is corrected by x {line.correction:.3g} to match what was measured"
    if verdict.cost_s is not None:
        yield f"a switch costs {verdict.cost_s:.3g} s"
    yield f"policy {line.policy}, decided in {line.decision_ms:.2f} ms"


def change_lines(decided: Mapping[str, Sequence[DecisionRecord]]) -> Iterable[str]:
    """The steps at which verdicts changed."""
    for stage, lines in decided.items():
        changed = changes(lines)
        span = f"steps {lines[0].step} to {lines[-1].step}"
        if not changed:
            yield f"{stage}: the verdict was {lines[-1].verdict.after} throughout, {span}"
            continue
        yield f"{stage}: the verdict changed {len(changed)} time{'s' * (len(changed) > 1)}, {span}"
        yield from (f"  step {line.step}: {line.verdict.reason}" for line in changed)


def switch_lines(ended: Iterable[RecordedSwitch], stage: str) -> Iterable[str]:
    """One line for each switch of the run, by the selector or an operator."""
    for switch in ended:
        if stage in ("", switch.stage):
            by = REQUESTED_BY.get(switch.by, switch.by)
            yield f"{switch.stage} {switch_text(switch)}; {by}: {switch.reason}"


def aligned(rows: Sequence[Sequence[str]], sides: str) -> Iterable[str]:
    """Rows in columns, each to its side (< or >)."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(sides))]
    for row in rows:
        cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))
        yield f"  {'   '.join(cells)}".rstrip()


def _number(value: float) -> str:
    """A number with three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _devices(count: int) -> str:
    return f"{count} device{'s' if count != 1 else ''}"
