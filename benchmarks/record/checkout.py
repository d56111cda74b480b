"""The source code that a benchmark measures: which commit, and whether the working tree differs from it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from earl.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
# Results are saved here while benchmarks run: they change nothing that is measured.
RESULTS_FOLDER = "benchmarks/results"
# Where a file that git does not know yet may be imported or read by what is measured.
CODE_FOLDERS = ("earl", "services", "benchmarks", "proto", "examples")
GIT_S = 30.0
SHOWN_CHANGES = 3


class UncommittedTree(ConfigError):
    """The working tree differs from its commit, so no one could repeat the result; nothing was saved."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """The commit and the uncommitted files of a working tree at one moment.

    commit: the first 12 hexadecimal digits; None outside a git checkout, for example in an installed
    package. changes: paths that differ from the commit, relative to the root, those in RESULTS_FOLDER
    left out.
    """

    commit: str | None
    changes: tuple[str, ...] = ()

    @property
    def label(self) -> str | None:
        """The commit as results name it: with "+changes" if the working tree differs from it."""
        return f"{self.commit}+changes" if self.commit and self.changes else self.commit


def checkout(root: Path = ROOT) -> Checkout:
    """Reads the state of the working tree at `root`, which must be the top level of its repository."""
    if git(root, "rev-parse", "--show-cdup") != "" or (head := git(root, "rev-parse", "HEAD")) is None:
        return Checkout(None)
    tracked = git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RESULTS_FOLDER}")
    untracked = git(root, "ls-files", "--others", "--exclude-standard", "--", *CODE_FOLDERS)
    changes = [line[3:] for line in (tracked or "").splitlines()]
    changes += [line for line in (untracked or "").splitlines() if not line.startswith(f"{RESULTS_FOLDER}/")]
    return Checkout(head[:12], tuple(changes))


def git(root: Path, *arguments: str) -> str | None:
    """Runs git in `root` and returns its output without the last newline; None if it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False, timeout=GIT_S
        )
    except OSError:  # there is no git
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def in_record(results: Path) -> bool:
    """Returns whether this directory is the checkout's own benchmarks/results/, or lies in it."""
    record = ROOT / RESULTS_FOLDER
    return results.resolve() == record or record in results.resolve().parents


def require_committed(state: Checkout) -> None:
    """Raises UncommittedTree unless the working tree is that of its commit."""
    if state.commit is None:
        raise UncommittedTree(
            f"git names no commit of {ROOT}, and {RESULTS_FOLDER}/ takes results of commits alone",
            "see what `git status` says there, or keep the result elsewhere with --results DIR",
        )
    if state.changes:
        named = [*state.changes[:SHOWN_CHANGES], *(["..."] if state.changes[SHOWN_CHANGES:] else [])]
        raise UncommittedTree(
            f"the working tree differs from {state.commit} ({', '.join(named)}), and {RESULTS_FOLDER}/ takes "
            "results of commits alone",
            "commit or stash the changes, or keep the result elsewhere with --results DIR",
        )
