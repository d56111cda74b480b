"""TextArena's games made, without a network, and the moves that they take.

A game says in its texts what may be said, mostly in brackets, and refuses the rest; it lists no legal
moves. So candidates, what was named in brackets and the game's own forms (textarena_games.py), are tried
on a copy: what a copy takes is legal. The copy has chance of its own, so a trial changes nothing.
"""

from __future__ import annotations

import copy
import random
import re
import sys
from collections.abc import Iterator
from typing import Any

import nltk
import textarena
from textarena.envs.registration import ENV_REGISTRY

from earl.env.adapters import episode_random
from earl.env.adapters.textarena_games import GAMES, LEFT_OUT, GameForms

# A message of TextArena: (who says it, text, its type).
Messages = list[tuple[int, str, Any]]

# Moves that one game has named and that are kept for a seat.
_KEPT = 200
_NAMED = re.compile(r"\[[^\[\]\n]{1,60}\]")
_WORDS = ("corpora/words", "taggers/averaged_perceptron_tagger_eng")
_PLAYER_ACTION = textarena.ObservationType.PLAYER_ACTION


def ids() -> dict[str, str]:
    """Id → game of all that may be served here or, with other packages installed, elsewhere."""
    by_id = {}
    for id, spec in ENV_REGISTRY.items():
        game = str(spec.entry_point).split(".")[2]
        if not id.endswith(("-raw", "-train")) and game in GAMES and id not in LEFT_OUT:
            by_id[id] = game
    return by_id


def refusal(id: str, game: GameForms) -> str:
    """Returns why a game cannot be played here, with what to do; empty if it can."""
    if sys.version_info < game.python:
        needed = ".".join(map(str, game.python))
        return f"textarena's {id} needs Python {needed}; serve it from a host with that version"
    if game.words and (missing := [name for name in _WORDS if not _has(name)]):
        names = " ".join(name.partition("/")[2] for name in missing)
        return (
            f"textarena's {id} needs word lists that are not installed: {', '.join(missing)}; "
            f"download them once: python -m nltk.downloader {names}"
        )
    return ""


def _has(resource: str) -> bool:
    try:
        nltk.data.find(resource)
    except LookupError:
        return False
    return True


def _no_download(*names: Any, **options: Any) -> bool:
    """Stands for nltk.download, which TextArena's modules call when imported: what is here is used."""
    return True


nltk.download = _no_download


def make_game(id: str) -> Any:
    """The game of an id, without TextArena's wrappers. Call it within episode_random.chance."""
    episode_random.load(str(ENV_REGISTRY[id].entry_point).partition(":")[0], "textarena")
    game = textarena.make(id)
    while isinstance(game, textarena.Wrapper):
        game = game.env
    return game


def puts_brackets(id: str) -> bool:
    """Returns whether TextArena's own wrappers put a text without brackets into them."""
    wrappers = ENV_REGISTRY[id].default_wrappers or []
    return textarena.wrappers.ActionFormattingWrapper in wrappers


def tidy(messages: Any) -> Messages:
    """Messages as they are meant: some games give their parts in another order."""
    tidied: Messages = []
    for message in messages:
        kinds = [part for part in message if isinstance(part, textarena.ObservationType)]
        texts = [part for part in message if isinstance(part, str)]
        speakers = [part for part in message if isinstance(part, int)]
        tidied.append((speakers[0] if speakers else textarena.GAME_ID, "\n".join(texts), kinds[0]))
    return tidied


class _Refused(Exception):
    pass


def takes(game: Any, move: str, chance: random.Random) -> bool:
    """Returns whether the game accepts a move of the current player; neither it nor `chance` changes."""
    trial = copy.deepcopy(game)

    def refuse(*values: Any, **options: Any) -> None:
        raise _Refused

    trial.state.set_invalid_move = refuse
    tried = random.Random()
    tried.setstate(chance.getstate())
    with episode_random.chance(tried):
        try:
            trial.step(move)
        except Exception:  # noqa: BLE001 - a move that the game cannot even refuse is none
            return False
    return True


class TextArenaSeat:
    """A player's seat, with the bracketed texts that it has read."""

    def __init__(self) -> None:
        self._now: list[str] = []
        self._before: list[str] = []

    def note(self, messages: Messages) -> None:
        """New messages for the player."""
        texts = [text for _, text, kind in messages if kind is not _PLAYER_ACTION]
        now = list(dict.fromkeys(_NAMED.findall("\n".join(texts))))
        if now:
            self._before = [move for move in self._now + self._before if move not in now][:_KEPT]
            self._now = now

    def candidates(self, game: Any, forms: GameForms, generator: random.Random) -> Iterator[str]:
        """Moves to try, in random order: what is named now, then the forms and what was named before."""
        general = forms.moves(game, generator) if forms.moves else []
        others = [move for move in dict.fromkeys([*general, *self._before]) if move not in self._now]
        for moves in (self._now, others):
            yield from generator.sample(moves, len(moves))
