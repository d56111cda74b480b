"""The report of a run: the page of the run in one file, with all that it shows inside."""

from __future__ import annotations

from html import escape
from pathlib import Path

from earl.cli.lib.run_directory import config_of
from earl.cli.report.document import document
from earl.cli.report.embedded import EmbeddedRun, embedded


def write_report(directory: Path) -> Path:
    """Reads a run's directory and writes report.html into it; ConfigError if it is no run."""
    path = directory / "report.html"
    path.write_text(page(embedded(directory, config_of(directory))), encoding="utf-8", newline="\n")
    return path


def page(run: EmbeddedRun) -> str:
    """The report as one HTML document: the page without what only a server can answer."""
    outline = run.sections["run"]
    about = f"{outline['environment']} · {outline['model']} · seed {outline['seed']}"
    replaced = (
        ('<h1 id="name">EARL</h1>', f'<h1 id="name">{escape(outline["name"])}</h1>'),
        ("connecting …</p>", f"{escape(about)}</p>"),
        ('<p id="why" class="faint"></p>', f'<p id="why" class="faint">{escape(outline.get("why", ""))}</p>'),
        ('<a href="/runs">All runs</a>', ""),
        ("Logs and run file", "Run file"),
        ("<span>connecting</span>", "<span>report</span>"),
    )
    return document("index.html", "ended", outline["name"], run.as_json(), replaced)
