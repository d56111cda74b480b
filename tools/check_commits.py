"""Refuses commit messages that a reader of the history cannot use: `python tools/check_commits.py`.

From the commit that brought this rule on: a subject of at most 72 characters with one change in it (no
semicolon), then an empty line, then the reason. Prints `commit: what; remedy` for each finding; exit code 1
if there is any. Without git history, or in a shallow clone that does not reach back to the rule, nothing is
checked and that is said.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.git_command import git_if_any

ROOT = Path(__file__).resolve().parent.parent
SUBJECT = 72
# A result names the commit that it measured: rewording that one, or one before it, would take it out of the
# history.
MEASURED = {"4e53d4d77555", "708f2d65e4bb", "fde9d851e858", "f72f3989047b"}


def faults(message: str) -> Iterator[str]:
    """The faults of a commit message."""
    subject, _, rest = message.partition("\n")
    if len(subject) > SUBJECT:
        yield f"a subject of {len(subject)} characters; at most {SUBJECT}, the rest belongs into the body"
    if ";" in subject:
        yield "a semicolon in the subject; one change a commit"
    if not rest.strip():
        yield "no body; say why the change was made"
    elif not rest.startswith("\n"):
        yield "no empty line after the subject; add one"


def main() -> int:
    rule = git_if_any(ROOT, "log", "--diff-filter=A", "--format=%H", "--", "tools/check_commits.py").split()
    if not rule:
        print("commits: no git history that reaches back to the rule; nothing was checked")
        return 0
    entries = git_if_any(ROOT, "log", "--no-merges", "--format=%H%x00%B%x01", f"{rule[-1]}..HEAD").split(
        "\x01"
    )
    messages = [entry.strip().partition("\0")[::2] for entry in entries if entry.strip()]
    wrong = [
        f"{commit[:8]}: {fault}"
        for commit, message in messages
        if commit[:12] not in MEASURED
        for fault in faults(message.strip())
    ]
    print("\n".join([*wrong, f"commits: {len(messages)} messages, {len(wrong)} findings"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
