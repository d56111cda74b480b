"""The environments that one host serves to the tests of all adapters."""

from earl.env.adapters import gymnasium, open_spiel, open_spiel_games, reasoning_gym, skyrl_gym, textarena
from earl.env.base import Environment

MODULES = (gymnasium, open_spiel, open_spiel_games, reasoning_gym, skyrl_gym, textarena)


def environments() -> list[type[Environment]]:
    return [cls for module in MODULES for cls in module.environments()]
