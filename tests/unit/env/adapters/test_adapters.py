"""Checks what holds for every adapter: a package that is missing, and a page that says what is not served."""

import builtins
import sys
import tomllib

import pytest

from earl.env.adapters import EXTRAS, gymnasium, open_spiel_games, reasoning_gym, skyrl_gym
from earl.env.adapters.textarena_games import GAMES, LEFT_OUT
from earl.env.serve import as_mapping, load
from earl.errors import ConfigError
from tests.support.paths import ROOT
from tests.support.sweep import MODULES

PAGE = (ROOT / "docs" / "adapters.md").read_text()


@pytest.mark.parametrize("package", list(EXTRAS))
def test_a_missing_package_is_named_with_its_extra(package, monkeypatch):
    imported = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *arguments, **options)

    adapter = {"pyspiel": "open_spiel"}.get(package, package)
    for name in [name for name in sys.modules if name.startswith(f"earl.env.adapters.{adapter}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=f"needs package {package}, which is not installed") as raised:
        load(f"earl.env.adapters.{adapter}:environments")
    assert f'pip install "earl[{EXTRAS[package]}]"' in str(raised.value)


def test_extras_are_those_of_the_project():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (every,) = extras["envs"]
    assert (
        set(EXTRAS.values()) <= set(every.removeprefix("earl[").removesuffix("]").split(",")) <= set(extras)
    )


def test_every_name_is_valid_and_of_one_environment():
    for module in (gymnasium, open_spiel_games, reasoning_gym, skyrl_gym):
        assert as_mapping(module.environments())


def test_the_page_says_what_is_not_served():
    needing = {name for name, game in GAMES.items() if game.words or game.python > (3, 11)}
    left_out = [open_spiel_games.left_out(), reasoning_gym.LEFT_OUT, skyrl_gym.LEFT_OUT, LEFT_OUT, needing]
    for name in sorted({name for names in left_out for name in names}):
        assert f"`{name}`" in PAGE, name
    for module in MODULES:
        assert f"| `{module}` |" in PAGE
