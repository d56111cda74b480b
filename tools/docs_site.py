"""Adds to the documentation's site what docs/ does not have: hooks of mkdocs.yml.

api/grpc.md is written while the site is built, from the contracts. And links that leave docs/, which a forge
follows, become what they name, since the site has only docs/; one whose target is missing is a warning, and
with --strict an error.
"""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import grpc_reference  # noqa: E402

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>\.\.?/[^)\s]+)\)")
RESULT = re.compile(r"\.\./benchmarks/results/[^/]+\.json")

log = logging.getLogger("mkdocs.hooks.docs_site")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    page = grpc_reference.page(grpc_reference.described())
    files.append(File.generated(config, "api/grpc.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page with links that leave docs/ as text."""
    docs = Path(config.docs_dir)
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target, text = link["target"].partition("#")[0], link["text"]
        path = posixpath.normpath(posixpath.join(folder, target))
        if not path.startswith("../"):
            return link[0]
        if not (docs / path).exists():
            log.warning("%s: %s is not in the repository", page.file.src_uri, link["target"])
        if RESULT.fullmatch(path):  # a table's rows are named by their dates
            return text
        named = f"`{path.removeprefix('../')}`"
        return text if text.strip("`").rstrip("/") in named else f"{text} ({named})"

    return LINK.sub(shown, markdown)
