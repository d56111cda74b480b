"""Full-text search over local documents, best first: SQLite's FTS5 and its BM25, from the standard library.

    index = SearchIndex(read_documents("docs"))
    index.search("how are groups dropped", most=3)      # [Hit(id="operating.md", title=…, text=…), …]

Ranking is BM25 (Robertson and Zaragoza, 2009) over title and text, words reduced to their stems (Porter);
a word in the title weighs TITLE_WEIGHT times. A query is words alone: nothing in it is syntax, any one of
its words may match, words in no document count for nothing. Equal scores are ordered by id, so the same
index and query always give the same answer. What comes back is bounded by `most` and `characters`.
"""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.errors import ConfigError

TITLE_WEIGHT = 3.0
MAX_QUERY_WORDS = 32
MAX_FILE_BYTES = 64 << 20
SUFFIXES = (".txt", ".md", ".jsonl")

_WORD = re.compile(r"\w+")
_HEADING = re.compile(r"^#+\s+(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Document:
    """id: unique in its index, for example a file's path."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that matched. text: the part of it that matches best, or all of a short one.
    score: BM25, higher is better."""

    id: str
    title: str
    text: str
    score: float


class SearchIndex:
    """An index of documents, in memory, or at `path`; any thread may search it.

    path: made again from `documents`, or, without documents, opened as it is, for reading alone.
    Raises ConfigError for a path that holds no index or already exists, an id that comes twice, and
    where Python's SQLite was built without FTS5.
    """

    def __init__(self, documents: Iterable[Document] | None = None, path: str | Path | None = None) -> None:
        self._lock = threading.Lock()
        if documents is None:
            if path is None:
                raise ConfigError("an index of nothing", "give documents, or the path of an index")
            self._open(Path(path))
            return
        if path is not None and Path(path).exists():
            raise ConfigError(f"{path} exists", "open it without documents, or remove it first")
        self._database = sqlite3.connect(str(path) if path else ":memory:", check_same_thread=False)
        try:
            self._fill(documents)
        except BaseException:
            self._database.close()
            raise

    def _open(self, path: Path) -> None:
        try:
            address = f"{path.resolve().as_uri()}?mode=ro"
            self._database = sqlite3.connect(address, uri=True, check_same_thread=False)
            self._size = self._database.execute("SELECT count(*) FROM documents").fetchone()[0]
        except sqlite3.Error as error:
            raise ConfigError(
                f"{path} is no search index: {error}", "make one: SearchIndex(documents, path)"
            ) from error

    def _fill(self, documents: Iterable[Document]) -> None:
        rows = sorted((document.id, document.title, document.text) for document in documents)
        for before, after in itertools.pairwise(rows):
            if before[0] == after[0]:
                raise ConfigError(f"two documents have the id {after[0]!r}", "give each an id of its own")
        columns = "id UNINDEXED, title, text, tokenize='porter unicode61'"
        try:
            self._database.execute(f"CREATE VIRTUAL TABLE documents USING fts5({columns})")
        except sqlite3.OperationalError as error:
            raise ConfigError(
                f"no full-text search: {error}", "use a Python whose SQLite has FTS5"
            ) from error
        with self._database:
            self._database.executemany("INSERT INTO documents VALUES (?, ?, ?)", rows)
        self._size = len(rows)

    def __len__(self) -> int:
        return self._size

    def search(self, query: str, most: int = 5, characters: int = 400) -> list[Hit]:
        """The best documents for the words of `query`, at most `most`, at most `characters` of each.

        Words past the first MAX_QUERY_WORDS are not looked for; a query without any finds nothing.
        """
        words = list(dict.fromkeys(_WORD.findall(query[:10_000].lower())))[:MAX_QUERY_WORDS]
        if not words or most < 1:
            return []
        terms = " OR ".join(f'"{word}"' for word in words)
        # About six characters a word; FTS5 cuts at most 64 of them.
        tokens = max(min(characters // 6, 64), 1)
        sql = (
            "SELECT id, title, text, snippet(documents, 2, '', '', '…', ?), "
            "bm25(documents, 0.0, ?, 1.0) AS rank FROM documents WHERE documents MATCH ? "
            "ORDER BY round(rank, 9), id LIMIT ?"
        )
        with self._lock:
            rows = self._database.execute(sql, (tokens, TITLE_WEIGHT, terms, most)).fetchall()
        return [
            Hit(id_, title, (text if len(text) <= characters else part)[:characters], -rank)
            for id_, title, text, part, rank in rows
        ]

    def text(self, id_: str) -> str | None:
        """The whole text of a document; None if there is none of this id."""
        with self._lock:
            row = self._database.execute("SELECT text FROM documents WHERE id = ?", (id_,)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """Lets go of the memory or the file."""
        self._database.close()


def read_documents(folder: str | Path) -> Iterator[Document]:
    """The documents of a folder and those below, in the order of their paths.

    A .txt or .md file is one document: its path in the folder is the id, its first heading (or its name)
    the title. A line of a .jsonl file is one: {"text": …, "id": …, "title": …}; without an id it is the
    path and the line's number, without a title the id. Hidden files are left out. Raises ConfigError for
    a folder that is not there or has no such file, for one that is larger than MAX_FILE_BYTES or not
    UTF-8, and for a line that is no such object.
    """
    folder = Path(folder)
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and path.is_file()]
    paths = [path for path in paths if not any(part[0] == "." for part in path.relative_to(folder).parts)]
    if not paths:
        raise ConfigError(f"{folder} has no documents", f"put {', '.join(SUFFIXES)} files there")
    for path in paths:
        name = path.relative_to(folder).as_posix()
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has {size} bytes, more than {MAX_FILE_BYTES}", "split it")
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8: {error}", "convert it, or move it away") from error
        if path.suffix == ".jsonl":
            yield from _lines(path, name, text)
        else:
            heading = _HEADING.search(text) if path.suffix == ".md" else None
            yield Document(name, heading[1] if heading else path.stem, text)


def _lines(path: Path, name: str, text: str) -> Iterator[Document]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"line {number} of {path} is not JSON: {error}", "give JSON lines") from error
        known = isinstance(value, dict) and isinstance(value.get("text"), str)
        if not known or not all(isinstance(value.get(key, ""), str) for key in ("id", "title")):
            raise ConfigError(f"line {number} of {path} is no document", 'write {"text": "…", "title": "…"}')
        id_ = value.get("id") or f"{name}:{number}"
        yield Document(id_, value.get("title") or id_, value["text"])
