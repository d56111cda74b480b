"""One HTML file that needs nothing else: scripts, styles and data, and a policy that allows only these.

The data are JSON in a script element that is never run; "<" is written as an escape in it, so that nothing
in it can end the element. Scripts and style are allowed by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Any

from earl.cli.report.bundle import bundled
from earl.cli.report.sections.encoding import encoded
from earl.cli.report.web_files import web_files
from earl.errors import ConfigError

STYLES = ("palette.css", "uplot.css", "page.css", "parts.css")
WITHOUT_SCRIPT = (
    '<noscript><p class="notice">The figures of this file are drawn by its own script, which this browser '
    "does not run. The run's directory has them as text: metrics.jsonl, evaluations.jsonl.</p></noscript>"
)

Replaced = Sequence[tuple[str, str]]


def document(page: str, entry: str, title: str, data: Any, replaced: Replaced = ()) -> str:
    """The whole file. page: name of an HTML file of the page, whose body is taken; entry: of its module.

    data: JSON-like, for the module; replaced: (text, HTML in its place), each once or more in the body.
    """
    files = {name: content.decode() for name, content in web_files().items()}
    modules = {name.removesuffix(".js"): text for name, text in files.items() if name.endswith(".js")}
    style = inline("".join(files[name] for name in STYLES), "</style")
    library = inline(files["uplot.js"], "</script", "<!--")
    script = inline(bundled(modules, entry), "</script", "<!--")
    body = files[page].partition("</head>\n")[2]
    for text, html in (("<main>", f"<main>{WITHOUT_SCRIPT}"), *replaced):
        if text not in body:
            raise ConfigError(f"{page} has no {text}", "install EARL again: its files do not fit each other")
        body = body.replace(text, html)
    values = encoded(data).decode().replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy([library, script], style)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)} · EARL</title>\n<style>{style}</style>\n"
        f'<script type="application/json" id="data">{values}</script>\n'
        f'<script>{library}</script>\n<script type="module">{script}</script>\n</head>\n{body}'
    )


def inline(text: str, *endings: str) -> str:
    """A text as an element of HTML holds it. Raises ConfigError if something in it would end the element."""
    text = text.replace("\r\n", "\n")
    for ending in endings:
        if ending in text.lower() or "\r" in text:
            raise ConfigError(f"a file of the page has {ending!r} in it", "install EARL again")
    return text


def policy(scripts: Sequence[str], style: str) -> str:
    """The Content-Security-Policy of a file with these scripts and this style, and nothing else."""
    allowed = " ".join(f"'{digest(text)}'" for text in scripts)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {allowed}",
            f"style-src '{digest(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
            # No text becomes markup: the browser refuses innerHTML and its like.
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
