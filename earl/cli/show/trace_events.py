"""A run's directory in Chrome's trace-event format, which Perfetto opens. Pure.

    run        steps (with their figures), evaluations, counters
    switches   one track a stage, each switch with its stall inside
    rollout-0, trainer, ...   one track for each kind of work: env, generate, load, training, publishing, ...

Times are microseconds since the run began. Format: "Trace Event Format", Google, JSON object form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from earl.cli.lib.ticket_words import LIVE
from earl.cli.report.data import RecordedRun

Event = dict[str, Any]

RUN, SWITCHES = "run", "switches"
# Counter tracks: names in metrics.jsonl, flat, and how they are called there.
COUNTERS: Mapping[str, Mapping[str, str]] = {
    "tokens/s": {"tokens_per_s": "end to end", "train_tokens_per_s": "training"},
    "reward": {"reward_mean": "mean"},
    "win rate": {"win_rate": "batch"},
    "loss": {"loss": "loss"},
    "episode tokens": {"length_mean": "mean", "length_max": "longest"},
    "staleness, versions": {"staleness_mean": "mean", "staleness_max": "most"},
    "tickets": {f"ledger.{state.name}": state.word for state in LIVE},
    "concurrency": {"load.rollout.concurrency": "mean", "load.rollout.concurrency_most": "most"},
    "idle engines": {"engines_idle_fraction": "fraction"},
    "tail of lengths": {"length_tail_ratio": "longest over mean"},
    "KV used": {"load.rollout.kv.used_fraction": "fraction"},
    "memory used": {f"load.{stage}.memory_fraction": stage for stage in ("rollout", "reference", "trainer")},
}
# Arguments of a step that its counters and histograms already show.
LEFT_OUT = ("ledger.", "length_histogram.", "episode_tokens.", "turn_tokens.", "load.", "transfers.")


def trace_of(run: RecordedRun) -> dict[str, Any]:
    """The whole trace: a JSON object with traceEvents, names of processes and tracks first."""
    tracks = Tracks()
    events = [*_work(run, tracks), *_switches(run, tracks), *_steps(run, tracks), *_moments(run, tracks)]
    events += _counters(run, tracks)
    shift = min((event["ts"] for event in events), default=0.0)
    for event in events:
        event["ts"] = round(event["ts"] - min(shift, 0.0), 3)
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    return {
        "traceEvents": [*tracks.names(), *events],
        "displayTimeUnit": "ms",
        "otherData": {"run": run.config.name, "source": str(run.directory)},
    }


class Tracks:
    """Numbers for processes and their tracks, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {RUN: 1, SWITCHES: 2}
        self._tracks: dict[tuple[str, str], int] = {}

    def numbers(self, process: str, track: str) -> dict[str, int]:
        pid = self._processes.setdefault(process, len(self._processes) + 1)
        tid = self._tracks.setdefault((process, track), len(self._tracks) + 1)
        return {"pid": pid, "tid": tid}

    def names(self) -> Iterator[Event]:
        """Metadata events that name processes and tracks."""
        for process, pid in self._processes.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        for (process, track), tid in self._tracks.items():
            pid = self._processes[process]
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": track}}


def _span(
    name: str, start_s: float, end_s: float, track: Mapping[str, int], args: Mapping[str, Any]
) -> Event:
    dur = round(max(0.0, end_s - start_s) * 1e6, 3)
    return {"ph": "X", "dur": dur, **_placed(name, start_s, track, args)}


def _placed(name: str, at_s: float, track: Mapping[str, int], args: Mapping[str, Any]) -> Event:
    """Builds the part common to spans and moments: when and where they are drawn."""
    return {"name": name, "cat": "earl", "ts": at_s * 1e6, **track, "args": dict(args)}


def _work(run: RecordedRun, tracks: Tracks) -> Iterator[Event]:
    for who, spans in run.spans.items():
        if who.endswith(f" {SWITCHES}"):
            continue  # switches.jsonl says more of them
        ends: dict[str, float] = {}
        for what, start_s, end_s in sorted(spans, key=lambda span: span[1:]):
            # Spans of one track may touch, not overlap: viewers nest what does.
            begin_s = max(start_s, ends.get(what, start_s))
            if end_s >= begin_s:
                ends[what] = end_s
                yield _span(what, begin_s, end_s, tracks.numbers(who, what), {})


def _switches(run: RecordedRun, tracks: Tracks) -> Iterator[Event]:
    for switch in run.switches:
        end_s, stage = float(switch["time_s"]), str(switch.get("stage", ""))
        track = tracks.numbers(SWITCHES, stage)
        back = "back to " if switch.get("rolled_back") else ""
        name = f"{back}{_degrees(switch.get('before' if back else 'after'))}"
        args = {key: value for key, value in switch.items() if key not in ("time_s", "end_ns", "stage")}
        yield _span(name, end_s - float(switch.get("seconds") or 0.0), end_s, track, args)
        if stall_s := float(switch.get("stall_s") or 0.0):
            yield _span("stall", end_s - stall_s, end_s, track, {"epoch": switch.get("epoch")})


def _degrees(recorded: Any) -> str:
    """A recorded (dp, tp, cp, pp) as text; degrees of 1 except dp are left out."""
    if not isinstance(recorded, Mapping):
        return "?"
    return " ".join(f"{name}={value}" for name, value in recorded.items() if name == "dp" or value != 1)


def _steps(run: RecordedRun, tracks: Tracks) -> Iterator[Event]:
    before_s = 0.0
    for line in _timed(run.metrics):
        end_s = float(line["time_s"])
        name = f"{line.get('phase', 'step')} {line.get('step', '')}".strip()
        args = {key: value for key, value in line.items() if not key.startswith(LEFT_OUT)}
        yield _span(name, min(before_s, end_s), end_s, tracks.numbers(RUN, "steps"), args)
        before_s = end_s


def _moments(run: RecordedRun, tracks: Tracks) -> Iterator[Event]:
    """An instant event at the end of each evaluation."""
    track = tracks.numbers(RUN, "evaluations")
    for evaluation in _timed(run.evaluations):
        args = {key: value for key, value in evaluation.items() if key not in ("rewards", "wins")}
        name = f"evaluation {evaluation.get('name', '')}"
        yield {"ph": "i", "s": "p", **_placed(name, float(evaluation["time_s"]), track, args)}


def _counters(run: RecordedRun, tracks: Tracks) -> Iterator[Event]:
    for line in _timed(run.metrics):
        at_us = float(line["time_s"]) * 1e6
        for track, names in COUNTERS.items():
            values = {short: line[name] for name, short in names.items() if _is_number(line.get(name))}
            if values:
                yield {
                    "ph": "C",
                    "name": track,
                    "ts": at_us,
                    **tracks.numbers(RUN, "counters"),
                    "args": values,
                }


def _timed(records: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [record for record in records if _is_number(record.get("time_s"))]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
