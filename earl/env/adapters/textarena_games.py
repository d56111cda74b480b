"""Facts that TextArena's registry lacks: players of a game, forms of its moves, why a game is not served.

A game is a folder of textarena.envs; its ids are variants ("Nim-v0", "Nim-v0-large").
"""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Moves = Callable[[Any, random.Random], list[str]]


@dataclass(frozen=True, slots=True)
class GameForms:
    """players: the fewest and the most. moves(game, generator): candidates in addition to what the game names
    in brackets, not all of them legal. rewards: bounds of a player's reward at the end. words: whether it
    needs nltk's word lists. tried: whether copies may be asked which moves are legal: not where the
    answer would tell the solution, or a copy takes long. python: the first version that reads its source."""

    players: tuple[int, int] = (1, 1)
    moves: Moves | None = None
    rewards: tuple[float, float] = (-1.0, 1.0)
    words: bool = False
    tried: bool = True
    python: tuple[int, int] = (3, 11)


# --- forms of moves --------------------------------------------------------------------------


def _fixed_moves(*moves: str) -> Moves:
    return lambda game, generator: list(moves)


def _numbers(last: int, form: str = "[{}]") -> Moves:
    return lambda game, generator: [form.format(number) for number in range(last + 1)]


def _each(form: str, *parts: Iterable[Any]) -> Moves:
    """Every combination of the parts, in the form's places."""
    moves = [form.format(*chosen) for chosen in itertools.product(*parts)]
    return lambda game, generator: moves


def _squares(form: str, columns: int, rows: int, reach: int) -> Moves:
    """From one square of a board to another at most `reach` columns and rows away: a1 is a corner."""
    squares = list(itertools.product(range(columns), range(1, rows + 1)))
    moves = [
        form.format(f"{string.ascii_lowercase[a]}{b}", f"{string.ascii_lowercase[c]}{d}")
        for (a, b), (c, d) in itertools.product(squares, squares)
        if 0 < max(abs(a - c), abs(b - d)) <= reach
    ]
    return lambda game, generator: moves


def _allocations(game: Any, generator: random.Random) -> list[str]:
    """Colonel Blotto: all units, divided at random."""
    names, units = game.field_names, game.num_total_units
    moves = []
    for _ in range(8):
        bounds = sorted(generator.randrange(units + 1) for _ in names[1:])
        shares = [high - low for low, high in zip([0, *bounds], [*bounds, units], strict=True)]
        named = " ".join(f"{name}{share}" for name, share in zip(names, shares, strict=True))
        moves.append(f"[{named}]")
    return moves


def _buttons(game: Any, generator: random.Random) -> list[str]:
    return [f"[{button}]" for button in game.buttons]


def _codes(game: Any, generator: random.Random) -> list[str]:
    """Mastermind: codes without a number twice, which every variant takes."""
    numbers = range(1, game.num_numbers + 1)
    codes = [generator.sample(numbers, game.code_length) for _ in range(12)]
    return ["[" + " ".join(map(str, code)) + "]" for code in codes]


def _offers(game: Any, generator: random.Random) -> list[str]:
    letters = ["".join(generator.choice("ABCDE") for _ in range(8)) for _ in range(4)]
    return ["[Accept]", "[Reject]", *(f"[Propose] {choice}" for choice in letters)]


def _valid_moves(game: Any, generator: random.Random) -> list[str]:
    """Santorini tells them without brackets."""
    moves = game.state.game_state["valid_moves"].split(", ")
    return ["[" + move.strip("[] ") + "]" for move in moves]


_WALK = _fixed_moves("[up]", "[down]", "[left]", "[right]")
_GRID = _each("[{} {}]", range(12), range(12))
_TWO = (2, 2)

# --- the games -------------------------------------------------------------------------------

GAMES: dict[str, GameForms] = {
    "Alquerque": GameForms(_TWO, _squares("[{} {}]", 5, 5, 2)),
    "Bandit": GameForms(moves=_buttons),
    "Battleship": GameForms(_TWO, _each("[{}{}]", string.ascii_uppercase[:20], range(20))),
    "Blackjack": GameForms(),
    "Breakthrough": GameForms(_TWO, _squares("[{}{}]", 10, 10, 1)),
    "Briscola": GameForms((2, 4), _numbers(4, "[play {}]")),
    "Checkers": GameForms(_TWO, _each("[{} {} {} {}]", *[range(8)] * 4), python=(3, 12)),
    "Chess": GameForms(_TWO, python=(3, 12)),
    "Chopsticks": GameForms(
        _TWO,
        lambda game, generator: [
            *_each("[attack {} {}]", range(2), range(2))(game, generator),
            *_each("[split {} {}]", range(5), range(5))(game, generator),
        ],
    ),
    "Codenames": GameForms((4, 4), words=True),
    "ColonelBlotto": GameForms(_TWO, _allocations),
    "ConnectFour": GameForms(_TWO, _numbers(14)),
    "Countdown": GameForms(moves=_each("[{} {} {}]", range(6), range(6), "+-*/")),
    "Crosswords": GameForms(moves=_each("[{} {} {}]", range(12), range(12), "aeioustrnl"), tried=False),
    "Crusade": GameForms(_TWO),
    "Cryptarithm": GameForms(moves=_each("[{} {}]", "SENDMORY", range(10))),
    "DontSayIt": GameForms(_TWO, words=True),
    "FifteenPuzzle": GameForms(moves=_WALK),
    "FrozenLake": GameForms(moves=_WALK),
    "Game2048": GameForms(moves=_WALK),
    "GameOfPureStrategy": GameForms(_TWO, _numbers(13)),
    "GermanWhist": GameForms(_TWO, _numbers(13, "[play {}]")),
    "Golf": GameForms(
        (2, 4),
        lambda game, generator: [
            *("[draw]", "[take]", "[discard]", "[knock]"),
            *_each("[{} {} {}]", ("swap", "peek"), range(3), range(3))(game, generator),
        ],
    ),
    "GuessTheNumber": GameForms(moves=_numbers(50)),
    "Hangman": GameForms(
        moves=_fixed_moves(*(f"[{letter}]" for letter in string.ascii_uppercase)), words=True
    ),
    "HighSociety": GameForms(_TWO),
    "IndianPoker": GameForms(_TWO),
    "IteratedMatchingPennies": GameForms(_TWO),
    "IteratedPrisonersDilemma": GameForms(_TWO),
    "IteratedRockPaperScissors": GameForms(_TWO),
    "IteratedStagHunt": GameForms(_TWO, python=(3, 12)),
    "IteratedTwoThirdsAverage": GameForms(_TWO, _numbers(100)),
    "IteratedUltimatumGame": GameForms(_TWO),
    "Klondike": GameForms(python=(3, 12)),
    "KuhnPoker": GameForms(_TWO),
    "LetterAuction": GameForms(_TWO, words=True),
    "LiarsDice": GameForms((2, 15)),
    "LightsOut": GameForms(moves=_GRID),
    "LinesOfAction": GameForms(_TWO, _squares("[{}{}]", 8, 8, 8)),
    "LogicPuzzle": GameForms(),
    "MarketEntryGame": GameForms((2, 15), _fixed_moves("[enter]", "[stay out]")),
    "Mastermind": GameForms(moves=_codes),
    "MemoryGame": GameForms(_TWO, _each("[{} {} {} {}]", *[range(8)] * 4)),
    "Minesweeper": GameForms(moves=_each("[{} {}]", range(5), range(5)), tried=False),
    "NewRecruit": GameForms(_TWO, _offers),
    "Nim": GameForms(_TWO, _each("[{} {}]", range(5), range(1, 12))),
    "Othello": GameForms(_TWO, _GRID),
    "PegJump": GameForms(moves=_each("[{} {}]", range(1, 16), range(1, 16))),
    "PigDice": GameForms(_TWO),
    "Poker": GameForms((2, 15)),
    "PublicGoodsGame": GameForms((2, 15), _numbers(20)),
    "QuantumTicTacToe": GameForms(_TWO, _each("[{},{}]", range(9), range(9))),
    "ReverseTicTacToe": GameForms(_TWO, _numbers(8), python=(3, 12)),
    "RushHour": GameForms(moves=_each("[{}{}]", string.ascii_uppercase, "+-")),
    "Santorini": GameForms((2, 3), _valid_moves),
    "Secretary": GameForms(),
    "SecretMafia": GameForms((6, 15), _fixed_moves("I am a villager.", *(f"[{n}]" for n in range(15)))),
    "Set": GameForms(moves=_each("[{} {} {}]", *[range(12)] * 3), tried=False),
    "SettlersOfCatan": GameForms((4, 4)),
    "SimpleBlindAuction": GameForms(_TWO),
    "SimpleNegotiation": GameForms(_TWO),
    "SimpleTak": GameForms(_TWO, _numbers(63)),
    "Slitherlink": GameForms(moves=_each("[{} {} {}]", "hv", range(5), range(5))),
    "Snake": GameForms((2, 15), _WALK),
    "Sokoban": GameForms(moves=_WALK),
    "SpellingBee": GameForms(_TWO, words=True),
    "SpiteAndMalice": GameForms(_TWO),
    "Stratego": GameForms(_TWO),
    "Sudoku": GameForms(moves=_each("[{} {} {}]", *[range(1, 10)] * 3), tried=False),
    "Surround": GameForms((2, 15), _WALK),
    "Taboo": GameForms((4, 8), _fixed_moves("[it]", "[a thing]", "It is large.", "It is small.")),
    "ThreeCardMonte": GameForms(moves=_numbers(3)),
    "ThreePlayerGOPS": GameForms((3, 3), _numbers(13)),
    "ThreePlayerIPD": GameForms((3, 3)),
    "ThreePlayerTicTacToe": GameForms((3, 3), _numbers(24)),
    "TicTacToe": GameForms(_TWO, _numbers(8)),
    "TowerOfHanoi": GameForms(moves=_each("[{} {}]", "ABC", "ABC")),
    "TruthAndDeception": GameForms(_TWO, _fixed_moves("[Fact 1]", "[Fact 2]")),
    "TwoDollar": GameForms(
        _TWO,
        lambda game, generator: [
            *("[Accept]", "[Reject]"),
            *(f"[Propose] ${generator.randrange(0, 201) / 100:.2f}" for _ in range(4)),
        ],
    ),
    "UltimateTexasHoldem": GameForms(python=(3, 12)),
    "UltimateTicTacToe": GameForms(_TWO, _each("[{} {} {}]", range(9), range(3), range(3))),
    "WildTicTacToe": GameForms(_TWO, _each("[{} {}]", "XO", range(9))),
    "WordChains": GameForms(_TWO, words=True),
    "WordLadder": GameForms(words=True),
    "WordSearch": GameForms(words=True),
    "Wordle": GameForms(words=True),
}

# Games, or ids of variants, of TextArena's registry that no host serves, and why.
LEFT_OUT: dict[str, str] = {
    "BabyAiText": "needs package gym and BabyAI-text, which is on no index",
    "CharacterConclave": "its messages have no type: every action raises TypeError",
    "Debate": "language models of a web service are its jury",
    "GuessWho": "a language model of a web service is its game master",
    "ScenarioPlanning": "language models of a web service are its jury",
    "ScorableGames": "its game descriptions are not in the package",
    "Sokoban-v0-medium": "making one of its rooms takes minutes",
    "Tak": "a move gives a mapping with quotes and brackets, and its end raises TypeError",
    "TwentyQuestions": "a language model of a web service is its game master",
    "UsedCar": "its module is not in the package",
    "UsedCarNegotiation": "its instructions are not in the package",
}
