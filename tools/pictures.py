"""Makes the documentation's pictures from real runs: `python tools/pictures.py` (`make pictures`).

    earl up examples/growing_context.toml ─► a step of training ─► earl status   ─► status.svg
                                          └► its end ─► the dashboard            ─► dashboard.png
                                                     └► earl explain, its switch ─► terminal.svg
    a terminal: earl up examples/tictactoe.toml, earl top, earl stop             ─► recording.svg

Takes about ten minutes, all cores, and Debian's chromium. The runs are in a directory of their own, which is
removed. Each picture replaces the one before as soon as it is made, with its entry in
docs/figures/pictures.json (tools/picture_record.py). Uncommitted changes are refused, since an entry names a
commit. The selector uses the profile that `earl profile examples/growing_context.toml` kept on this machine;
without one the launch measures a short one by itself.

    python tools/pictures.py --only recording.svg       makes only these
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from earl.cli.lib.switches import RecordedSwitch, read_switches  # noqa: E402  found from wherever this is run
from earl.obs.metrics import read_lines  # noqa: E402
from earl.stack.record import read_record  # noqa: E402
from tools import dashboard_picture, picture_record, terminal_picture, terminal_recording  # noqa: E402
from tools.git_command import git  # noqa: E402
from tools.terminal_film import drawn  # noqa: E402

GROWING, TICTACTOE = "examples/growing_context.toml", "examples/tictactoe.toml"
BIN = Path(sys.executable).parent
# The step that is in progress in the picture of `earl status`.
STATUS_STEP = 10
UP_S, RUN_S, POLL_S = 300.0, 1200.0, 0.5
# What README says of the switch in the picture.
DESCRIBED = ("dp4", "tp4")


def save(name: str, made: Path, run: str) -> None:
    """Replaces a picture of the documentation by one that was made, and records it."""
    shutil.copyfile(made, ROOT / picture_record.FIGURES / name)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    picture_record.note(name, git(ROOT, "rev-parse", "--short=12", "HEAD"), date, run)
    print(f"{name}: {made.stat().st_size >> 10} KiB", flush=True)


# --- a run whose contexts grow --------------------------------------------------------------


@contextlib.contextmanager
def started(run_file: str) -> Iterator[Path]:
    """A run in the background in the current directory; stopped at once at the end if it still runs."""
    subprocess.run(["earl", "up", run_file], check=True, timeout=UP_S)
    (directory,) = Path("runs").iterdir()
    try:
        yield directory
    finally:
        if not outcome(directory):
            subprocess.run(["earl", "stop", "--now"], check=False, timeout=120)


def outcome(directory: Path) -> str:
    """Returns how the run's launch ended; "" while it runs."""
    record = read_record(directory)
    return record.outcome if record is not None else ""


def steps(directory: Path) -> int:
    """Training steps that the run has done."""
    return sum(line.get("phase") == "train" for line in read_lines(directory / "metrics.jsonl"))


def wait(met: Callable[[], bool], bound_s: float, what: str) -> None:
    """Polls until the condition holds. Raises TimeoutError."""
    end_s = time.monotonic() + bound_s
    while not met():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what}: not within {bound_s:g} s")
        time.sleep(POLL_S)


def wait_for_step(directory: Path, step: int) -> None:
    """Waits until a run in progress has done a training step.

    Raises RuntimeError if the run has ended, in whatever way, since a picture would show that; TimeoutError.
    """
    wait(lambda: steps(directory) >= step or bool(outcome(directory)), RUN_S, f"step {step}")
    if ended_as := outcome(directory):
        raise RuntimeError(
            f"{directory} ended as {ended_as!r} after {steps(directory)} steps, before its picture was made: "
            "see its logs with --keep"
        )


def explained(directory: Path) -> RecordedSwitch:
    """The first switch of rollout that the selector decided. Raises LookupError: there is none."""
    for switch in read_switches(directory):
        if switch.stage == "rollout" and switch.step and not switch.rolled_back:
            return switch
    raise LookupError(f"the selector of {directory} made no switch of rollout to explain; run again")


def growing_pictures(chosen: set[str]) -> None:
    """status.svg, dashboard.png and terminal.svg, of one run in the current directory."""
    with started(GROWING) as directory:
        if "status.svg" in chosen:
            wait_for_step(directory, STATUS_STEP)
            terminal_pictures("status.svg", "earl status")
        if chosen.isdisjoint(("dashboard.png", "terminal.svg")):
            return
        wait(lambda: bool(outcome(directory)), RUN_S, "the end of the run")
        if outcome(directory) != "complete":
            raise RuntimeError(f"{directory} ended as {outcome(directory)!r}: see its logs with --keep")
        if "dashboard.png" in chosen:
            asyncio.run(dashboard_picture.picture(directory, Path("dashboard.png"), "light"))
            save("dashboard.png", Path("dashboard.png"), GROWING)
        if "terminal.svg" in chosen:
            switch = explained(directory)
            terminal_pictures(
                "terminal.svg", f"earl explain {directory} --stage rollout --step {switch.step}"
            )
            if (layouts := (str(switch.before), str(switch.after))) != DESCRIBED:
                print(f"change README: terminal.svg shows {' → '.join(layouts)}")


def terminal_pictures(name: str, command: str) -> None:
    Path(name).write_text(terminal_picture.picture([command]), encoding="utf-8")
    save(name, Path(name), GROWING)


# --- all ------------------------------------------------------------------------------------


def make(chosen: set[str], directory: Path) -> None:
    """Makes pictures, with the runs in a directory that is empty."""
    (directory / "examples").symlink_to(ROOT / "examples")
    with contextlib.chdir(directory):
        if chosen - {"recording.svg"}:
            growing_pictures(chosen)
        if "recording.svg" in chosen:
            cast = terminal_recording.readme_session(directory / "recording.cast")
            Path("recording.svg").write_text(drawn(cast), encoding="utf-8")
            save("recording.svg", Path("recording.svg"), TICTACTOE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(picture_record.SOURCES)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--keep", type=Path, help="An empty directory for the runs, which are then kept.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if changed := git(ROOT, "status", "--porcelain", "--", ".", f":!{picture_record.FIGURES}"):
        raise SystemExit(f"pictures: an entry names a commit, so commit these changes first:\n{changed}")
    if "dashboard.png" in arguments.only and shutil.which("chromium") is None:
        raise SystemExit(
            "pictures: chromium is not on PATH: apt-get install --no-install-recommends chromium"
        )
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="pictures-"))
        directory = arguments.keep.resolve() if arguments.keep else Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        make(set(arguments.only), directory)


if __name__ == "__main__":
    main()
