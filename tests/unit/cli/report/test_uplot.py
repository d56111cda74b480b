"""The chart library that page and report run is the release that was chosen, whatever package carries it."""

from __future__ import annotations

import pytest

from earl.cli.report import uplot
from earl.errors import ConfigError


def test_script_and_style_are_the_ones_of_the_release():
    files = uplot.uplot_files()
    assert b"uPlot (v1.6.31)" in files["uplot.js"] and b".uplot" in files["uplot.css"]


def test_another_file_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"pip install --force-reinstall youplot==1\.0\.0"):
        uplot._checked("uplot.min.css", "0" * 64)
    with pytest.raises(ConfigError, match="not installed"):
        uplot._checked("nothing.js", "0" * 64)
