"""Pictures of results in README.md and docs/: tools/figures.py fills these markers and draws the pictures.

    <!--picture paper-table1--> ... <!--/picture-->

The newest result of the benchmark is drawn into docs/figures/paper-table1.svg (tools/paper_pictures.py). The
page gets the picture, the command that made the result, and the result's date, commit and machine. As long as
there is no result the page shows nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tools.paper_pictures import PICTURES, draw
from tools.results import RESULTS, ROOT, BenchmarkResult, FigureError, Record

FOLDER = Path("docs/figures")
PICTURE = re.compile(r"<!--picture (?P<spec>(?:(?!-->).)*)-->(?P<text>.*?)<!--/picture-->", re.DOTALL)


def file_of(benchmark: str) -> Path:
    """A benchmark's picture, from the root of the checkout."""
    return FOLDER / f"{benchmark}.svg"


def newest(benchmark: str, known: Record) -> BenchmarkResult | None:
    """The result that is drawn."""
    series = known.series(benchmark)
    return series[-1] if series else None


def embedded(benchmark: str, known: Record, folder: Path) -> tuple[str, BenchmarkResult | None]:
    """The text of a marker in a page of this folder, and the result that it shows. Raises FigureError."""
    if benchmark not in PICTURES:
        raise FigureError(f"there is no picture of {benchmark}; there are {', '.join(PICTURES)}")
    result = newest(benchmark, known)
    if result is None:
        return "", None
    image = f"![{draw(result.figures).description}]({relative(ROOT / file_of(benchmark), folder)})"
    link = f"[{result.date}]({relative(RESULTS / f'{result.name}.json', folder)})"
    command = f"`earl bench paper --figure {result.figures['figure']}`"
    return f"\n\n{image}\n\n{command}, {link}, commit `{result.commit}`, {result.machine}.\n\n", result


def relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def drawn(known: Record) -> Iterator[tuple[Path, str]]:
    """Every picture that has a result, with its SVG."""
    for benchmark in PICTURES:
        result = newest(benchmark, known)
        if result is not None:
            yield file_of(benchmark), draw(result.figures).svg()


def check(known: Record, write: bool, root: Path = ROOT) -> Iterator[str]:
    """A fault for each picture that is not that of its newest result; with `write` it is drawn instead."""
    current = dict(drawn(known))
    for path, svg in current.items():
        file = root / path
        if file.exists() and file.read_text(encoding="utf-8") == svg:
            continue
        if write:
            file.write_text(svg, encoding="utf-8")
            print(f"drawn: {path.as_posix()}")
        else:
            yield f"{path.as_posix()}: not that of the newest result (python tools/figures.py --write)"
    for path in map(file_of, PICTURES):
        if path not in current and (root / path).exists():
            yield f"{path.as_posix()}: no result has this picture; remove it"
