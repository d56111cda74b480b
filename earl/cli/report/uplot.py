"""uPlot 1.6.31, the chart library of page and report: its script and style sheet, whoever packaged them.

Both come from the package youplot, which carries them unchanged. Their hashes are checked before they are
served or written, so that only this release of uPlot is ever run.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from earl.errors import ConfigError

# Names and hashes of the files in dist/ of the release.
SCRIPT = ("uplot.iife.min.js", "2d27e8ad3d228164525ce213f9dc716f39b4e3aee0cc773fb3491c96cf4921a2")
STYLE = ("uplot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04")


@cache
def uplot_files() -> dict[str, bytes]:
    """uplot.js and uplot.css. Raises ConfigError where they are missing, or other ones than expected."""
    return {"uplot.js": _checked(*SCRIPT), "uplot.css": _checked(*STYLE)}


def _checked(name: str, expected: str) -> bytes:
    remedy = "install it again: pip install --force-reinstall youplot==1.0.0"
    try:
        data = resources.files("youplot").joinpath("vendor", name).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise ConfigError(f"the chart library is not installed: youplot has no {name}", remedy) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected:
        raise ConfigError(f"{name} of youplot has the hash {digest[:12]}…, not {expected[:12]}…", remedy)
    return data
