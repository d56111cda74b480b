"""Questions about a small corpus that only this episode has: the agent searches it and says the answer.

    user       In which year was Velmor founded? …how to call…
    agent      <tool_call>{"name": "search", "arguments": {"query": "Velmor"}}</tool_call>
    tool       Velmor: The river Tarn flows through Velmor. It was founded in 1382. …
    agent      1382

Towns, their names and all facts about them are made up from the seed, so that nothing can be known by
heart: the right answer is in the documents alone. Search is search.py's, over as many documents as
there are towns. Evaluation's corpora are never training's (held_out.py).

Task: {"kinds": ["founded", "river"], "towns": 12, "results": 2, "calls": 4, "instruction": "…"}: which of
KINDS are asked, how many documents there are, how many a search returns, how many actions may call. An
action without a call is the answer: right if, of all the corpus's values of that kind (years, rivers,
…), it names the right one and no other. An action that calls when no calls are left ends the episode.

Reward: SEARCHED for the first search that finds anything, REACHED_TOWN more when one found the town asked
about, ANSWERED more for the right answer; they add up to 1. Metrics, each 0 or 1: win, searched, found; and
calls, how many searches there were.

Legal actions, for a warm-up that teaches the form and leaves the task to be learned: before anything is
found searches for words of the question, of which the town's name is one; after it what the first document
found says of its town, of the kind asked about and of two others. All of it can be read, none need be
guessed: a warm-up on names that occur nowhere would teach to make them up.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from earl.env.adapters.held_out import drawn
from earl.env.adapters.metrics import metrics
from earl.env.adapters.settings import Some, Text, Whole, checked
from earl.env.base import Environment, Observation, StepResult, ToolCall
from earl.env.search import Document, Hit, SearchIndex
from earl.env.tool_calls import render
from earl.env.tools import Called, ToolEnvironment, tool

SEARCHED, REACHED_TOWN, ANSWERED = 0.1, 0.3, 0.6
RESULT_CHARACTERS = 400

# Kind → (question, sentence of the document); the kind's name is a word of every document.
KINDS = {
    "founded": ("In which year was {town} founded?", "It was founded in {value}."),
    "river": ("Which river flows through {town}?", "The river {value} flows through the town."),
    "mayor": ("Who is the mayor of {town}?", "The mayor is {value}."),
    "known": ("What is {town} known for?", "The town is known for its {value}."),
    "people": ("How many people live in {town}?", "There are {value} people living here."),
}
_STARTS = (
    "Bel",
    "Cor",
    "Dun",
    "Fal",
    "Gar",
    "Hol",
    "Kes",
    "Lim",
    "Mar",
    "Nor",
    "Pel",
    "Ros",
    "Sel",
    "Tor",
    "Vel",
)
_ENDS = ("bach", "dale", "dorf", "field", "gate", "haven", "mor", "ney", "stad", "ton", "wick", "wold")
_RIVERS = ("Ald", "Bren", "Cald", "Erne", "Fenn", "Iss", "Lod", "Mure", "Orr", "Rhune", "Swal", "Tarn")
_FIRST = (
    "Ada",
    "Boris",
    "Clara",
    "Dario",
    "Edith",
    "Felix",
    "Greta",
    "Hugo",
    "Iris",
    "Jonas",
    "Karla",
    "Leo",
)
_LAST = (
    "Ahlberg",
    "Brandt",
    "Castel",
    "Dorn",
    "Ekman",
    "Ferro",
    "Grau",
    "Holt",
    "Ivers",
    "Keller",
    "Lund",
    "Moreau",
)
_PRODUCTS = (
    "bells",
    "blankets",
    "candles",
    "cheese",
    "clocks",
    "glass",
    "honey",
    "lace",
    "pears",
    "pottery",
    "salt",
    "violins",
)
MOST_TOWNS = len(_RIVERS)


def call_of(query: str) -> str:
    """The text that calls the tool with this query."""
    return render(ToolCall("search", {"query": query}))


# Added to the question: the form of a call, by an example that is no question's.
INSTRUCTION = f"Search, for example {call_of('Atlantis')}, then say the answer."
_TASK = {
    "kinds": Some(*KINDS),
    "towns": Whole(MOST_TOWNS, 3, MOST_TOWNS),
    "results": Whole(2, 1, 10),
    "calls": Whole(4, 1, 32),
    "instruction": Text(INSTRUCTION),
}


@dataclass(frozen=True, slots=True)
class Corpus:
    """values: kind → town → what is true of it. town, kind: what is asked."""

    documents: tuple[Document, ...]
    values: dict[str, dict[str, str]]
    town: str
    kind: str

    @property
    def question(self) -> str:
        """The question as it is asked."""
        return KINDS[self.kind][0].format(town=self.town)

    @property
    def answer(self) -> str:
        """The one right value."""
        return self.values[self.kind][self.town]

    def is_right(self, text: str) -> bool:
        """Returns whether a text names the right value and no other of its kind."""
        plain = text.casefold().replace(",", "")

        def names(value: str) -> bool:
            return re.search(rf"(?<!\w){re.escape(value.casefold())}(?!\w)", plain) is not None

        return set(filter(names, self.values[self.kind].values())) == {self.answer}


class SearchTool(ToolEnvironment):
    """One question, for which the agent may search several times before it answers."""

    name = "tools/search"
    description = "A question about a small corpus; search finds documents; an answer without a call counts."
    reward_range = (0.0, 1.0)
    result_characters = 4_000
    observation_characters = 8_000
    corpus: Corpus
    _index: SearchIndex | None = None

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """ValueError for a bad task."""
        settings = checked(task, _TASK)
        self.corpus = drawn(seed, lambda number: made_up(number, settings), lambda corpus: corpus.question)
        self._index = SearchIndex(self.corpus.documents)
        self._results: int = settings["results"]
        self._left: int = settings["calls"]
        self._searches: list[list[Hit]] = []
        self._earned = 0.0
        return Observation(f"{self.corpus.question} {settings['instruction']}".rstrip(), self._legal())

    @tool(parallel=False)
    def search(self, query: str) -> str:
        """Searches the documents for the words of the query and returns the best of them."""
        assert self._index is not None
        hits = self._index.search(query, self._results, RESULT_CHARACTERS)
        self._searches.append(hits)
        return "\n".join(f"{hit.title}: {hit.text}" for hit in hits) or "nothing found"

    def called(self, calls: Sequence[Called], result: StepResult) -> StepResult:
        """Returns the search results with their reward."""
        if self._left == 0:
            return self._ended("no calls are left")
        self._left -= 1
        earned = SEARCHED * self._searched + REACHED_TOWN * self._town_reached
        reward, self._earned = earned - self._earned, earned
        assert isinstance(result.observation, Observation)
        shown = result.observation
        observation = Observation(shown.text, self._legal(), shown.role, shown.tool_results)
        return StepResult(observation, reward)

    def answered(self, text: str) -> StepResult:
        """The text is the answer."""
        right = self.corpus.is_right(text)
        return self._ended("right" if right else f"it is {self.corpus.answer}", ANSWERED * right, right)

    def close(self) -> None:
        if self._index is not None:
            self._index.close()

    def _legal(self) -> list[str]:
        corpus = self.corpus
        hits = self._searches[-1] if self._searches else []
        if not hits:
            return [call_of(query) for query in sorted((corpus.town, corpus.kind, "town"))]
        others = [kind for kind in KINDS if kind != corpus.kind][:2]
        return sorted(corpus.values[kind][hits[0].title] for kind in (corpus.kind, *others))

    @property
    def _searched(self) -> bool:
        return any(self._searches)

    @property
    def _town_reached(self) -> bool:
        return any(hit.title == self.corpus.town for hits in self._searches for hit in hits)

    def _ended(self, text: str, reward: float = 0.0, right: bool = False) -> StepResult:
        calls = len(self._searches)
        figures = metrics(win=right, searched=self._searched, found=self._town_reached, calls=calls)
        return StepResult(Observation(text), reward, done=True, metrics=figures)


def made_up(number: int, settings: dict[str, Any]) -> Corpus:
    """Towns with facts, no two towns alike in any of them, and a question about one."""
    rng = random.Random(number)
    count = settings["towns"]
    towns = rng.sample([start + end for start in _STARTS for end in _ENDS], count)
    drawn_values = {
        "founded": [str(year) for year in rng.sample(range(1100, 1900), count)],
        "river": rng.sample(_RIVERS, count),
        "mayor": [
            f"{first} {last}"
            for first, last in zip(rng.sample(_FIRST, count), rng.sample(_LAST, count), strict=True)
        ],
        "known": rng.sample(_PRODUCTS, count),
        "people": [str(hundreds * 100) for hundreds in rng.sample(range(20, 900), count)],
    }
    values = {kind: dict(zip(towns, drawn, strict=True)) for kind, drawn in drawn_values.items()}
    documents = []
    for town in towns:
        sentences = [KINDS[kind][1].format(value=values[kind][town]) for kind in KINDS]
        rng.shuffle(sentences)
        documents.append(Document(town, town, f"{town} is a town. {' '.join(sentences)}"))
    kind = rng.choice(settings["kinds"])
    return Corpus(tuple(documents), values, rng.choice(towns), kind)


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [SearchTool]
