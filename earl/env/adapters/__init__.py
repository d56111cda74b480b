"""Environments that others wrote, made EARL's: one module per package, imported only when served.

Each needs its package, which an extra of the same name installs: `pip install "earl[textarena]"`.
"""

# Module that an adapter imports → the extra that brings it; `envs` is all of them.
EXTRAS = {
    "gymnasium": "gymnasium",
    "pettingzoo": "pettingzoo",
    "pyspiel": "open-spiel",
    "reasoning_gym": "reasoning-gym",
    "skyrl_gym": "skyrl-gym",
    "textarena": "textarena",
}
