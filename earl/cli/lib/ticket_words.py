"""The words for states of tickets and trajectories: one table for terminal, page and report. Pure.

--json, metrics and the protocol have names of their own for the states, which stay; people are shown the
words.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class TicketWord:
    """The word for one state of a ticket.

    name: that of --json. meaning: in a few words. style: the terminal's colour. colour: its number in the
    page's palette. live: the ticket is in progress.
    """

    name: str
    word: str
    meaning: str
    style: str
    colour: int
    live: bool = False


# In the order in which a ticket goes through them.
TICKETS = (
    TicketWord("pending", "pending", "waits for a worker", "grey50", 6, live=True),
    TicketWord("leased", "playing", "a worker plays it", "cyan", 0, live=True),
    TicketWord("ready", "ready", "waits for a batch", "yellow", 1, live=True),
    TicketWord("planned", "in a batch", "is being trained on", "magenta", 4, live=True),
    TicketWord("trained", "trained", "trained on, once", "green", 5),
    TicketWord("replayed", "trained again", "of a replay: trained on, once", "dark_cyan", 3),
    TicketWord("evaluated", "evaluated", "counted in an evaluation", "blue", 2),
    TicketWord("dropped", "dropped", "given up, with a reason", "red", 7),
)
LIVE = tuple(state for state in TICKETS if state.live)
PLAYING = next(state.word for state in TICKETS if state.name == "leased")
# What a stage has done with the trajectories that it is for: name, word and the terminal's colour.
ROLES = (("waiting", "waiting", "yellow"), ("leased", "in progress", "cyan"), ("done", "done", "green"))


def words_module() -> bytes:
    """The same tables as a module of the page, words.js."""
    tables = {"TICKETS": [astuple(state) for state in TICKETS], "ROLES": ROLES}
    lines = [f"export const {name} = {json.dumps(table)};\n" for name, table in tables.items()]
    return "".join(lines).encode()
