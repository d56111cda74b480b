"""Files that git tracks: the project's, and no environment that an installer has filled."""

from __future__ import annotations

from tests.support.paths import ROOT
from tools.git_command import git_if_any


def test_no_environment_of_packages_is_tracked():
    environments = [name for name in git_if_any(ROOT, "ls-files").splitlines() if name.startswith(".venv")]
    assert environments == [], "remove them with git rm -r --cached, and name their folder in .gitignore"
