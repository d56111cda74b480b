"""The files of the page: what the dashboard serves and the report holds."""

from __future__ import annotations

from functools import cache
from importlib import resources

from earl.cli.lib.ticket_words import words_module
from earl.cli.report.uplot import uplot_files

KINDS = ("html", "css", "js", "svg")


@cache
def web_files() -> dict[str, bytes]:
    """Contents by name, with the chart library and the table of words that the terminal has too.

    Raises ConfigError where the library is not the expected release.
    """
    folder = resources.files("earl.cli.report").joinpath("web")
    named = {file.name: file for file in folder.iterdir() if file.name.rpartition(".")[2] in KINDS}
    files = {name: file.read_bytes() for name, file in sorted(named.items())}
    return {**uplot_files(), **files, "words.js": words_module()}
