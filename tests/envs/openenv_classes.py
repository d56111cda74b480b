"""Environments over the OpenEnv server of openenv_side.py, for a host that a test starts."""

import os

from earl.env.adapters.openenv import OpenEnv


class Guess(OpenEnv):
    """Text in, text out."""

    name = "openenv/guess"
    url = f"http://127.0.0.1:{os.environ.get('OPENENV_SIDE_PORT', '1')}"
    action_field = "number"
    text_field = "text"
    max_steps = 12
    open_s = 3.0
    answer_s = 3.0


class Raw(Guess):
    """JSON in, JSON out."""

    name = "openenv/raw"
    action_field = ""
    text_field = ""


class Mistaken(Guess):
    """A field that the server's observation has not."""

    name = "openenv/mistaken"
    text_field = "words"


ALL = [Guess, Raw, Mistaken]
