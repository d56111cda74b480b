"""Finds sentences of the documentation that are too long to be read once: `python tools/check_sentences.py`.

    page ─► text without code blocks, tables, headings, comments ─► paragraphs, list items ─► sentences

A sentence may have LIMIT words. Code between backquotes counts as one word, and so does a formula. Of a link
its text counts, of a marker the figure that it inserts. A sentence ends with a full stop, a question mark or
an exclamation mark before a space, and with its paragraph or list item; a colon or a semicolon ends none.

Prints `file:line: words: beginning` for each longer sentence; exit code 1 if there is any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 40
FOLDERS = ("docs", "benchmarks", "deploy", "examples", "tests/support")

FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)
# Not read as sentences: tables, headings, generated references, rules, the title of an admonition.
NO_TEXT = re.compile(r"\s*(\||#{1,6} |:::|---|!!!|\?\?\?|\[[^\]]+\]: )")
ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+(?:\[[ x]\] )?")
CODE = re.compile(r"(`+)(?:.|\n)+?\1")
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
TAG = re.compile(r"</?[a-z][^>]*>")
# In this order, with what is read in their place.
REPLACED = ((FENCE, ""), (COMMENT, ""), (FORMULA, "formula"), (CODE, "code"), (IMAGE, ""), (TAG, ""))
# Where a full stop ends a word and no sentence.
SHORT = re.compile(r"(?:^|[\s(])(?:e\.g|i\.e|cf|vs|approx|etc)\.$")
END = re.compile(r"[.!?][)\"'”*_]*(?=\s|$)")
WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as it is shown, with the line of the page on which its paragraph begins."""

    line: int
    text: str

    @property
    def words(self) -> int:
        return sum(bool(WORD.search(word)) for word in self.text.split())


def pages(root: Path = ROOT) -> list[Path]:
    """The Markdown files that people read: those of the root and of FOLDERS."""
    below = (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.md")))
    return [*sorted(root.glob("*.md")), *(path for path in below if "node_modules" not in path.parts)]


def sentences(page: str) -> Iterator[Sentence]:
    """The sentences of a page, in their order."""
    for line, paragraph in paragraphs(page):
        begin = 0
        for end in END.finditer(paragraph):
            if not SHORT.search(paragraph[: end.start() + 1]):
                yield Sentence(line, paragraph[begin : end.end()].strip())
                begin = end.end()
        if rest := paragraph[begin:].strip():
            yield Sentence(line, rest)


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """The first line and the shown text of each paragraph and list item."""
    first, lines = 0, list[str]()
    for number, line in enumerate([*_without_blocks(page).split("\n"), ""], 1):
        item = ITEM.match(line)
        if lines and (item or not line.strip() or NO_TEXT.match(line)):
            yield first, " ".join(lines)
            lines = []
        if line.strip() and not NO_TEXT.match(line):
            first = first if lines else number
            lines.append((line[item.end() :] if item else line).strip(" >"))


def _without_blocks(page: str) -> str:
    """The page with as many lines, where what is no text is gone and what is read as one word is one."""
    for pattern, shown in REPLACED:
        page = pattern.sub(lambda match, shown=shown: shown + "\n" * match[0].count("\n"), page)
    return LINK.sub(lambda match: match[1] + "\n" * (match[0].count("\n") - match[1].count("\n")), page)


def main() -> int:
    files = pages()
    findings = [
        f"{path.relative_to(ROOT).as_posix()}:{sentence.line}: {sentence.words} words: {sentence.text[:60]}"
        for path in files
        for sentence in sentences(path.read_text(encoding="utf-8"))
        if sentence.words > LIMIT
    ]
    print(
        "\n".join([*findings, f"sentences: {len(files)} pages, {len(findings)} of more than {LIMIT} words"])
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
