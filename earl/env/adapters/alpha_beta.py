"""Opponents that look ahead: exact play for tic-tac-toe, bounded alpha-beta for Connect Four, and players of
one ply for both.

The first two are negamax over small immutable positions, so that results can be memoised. A player of one
ply takes a win, else the place where the other side would win, else any. Among equally good moves the
caller's generator chooses, which keeps games varied and reproducible.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache


def _one_ply(
    moves: Sequence[int], wins: Callable[[int], bool], loses: Callable[[int], bool], rng: random.Random
) -> int:
    """wins: of a move, whether it wins; loses: whether the other side would win with it."""
    for decides in (wins, loses):
        if deciding := [move for move in moves if decides(move)]:
            return rng.choice(deciding)
    return rng.choice(moves)


# --- tic-tac-toe: a board is a string of nine characters, "x", "o" or "." --------------------

_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@cache
def tic_tac_toe_value(board: str, mark: str) -> int:
    """1 if the side to move, `mark`, wins with perfect play, 0 for a draw, -1 if it loses."""
    other = "o" if mark == "x" else "x"
    if _has_three(board, other):
        return -1
    free = [cell for cell in range(9) if board[cell] == "."]
    if not free:
        return 0
    return max(-tic_tac_toe_value(_marked(board, cell, mark), other) for cell in free)


def _has_three(board: str, mark: str) -> bool:
    return any(board[a] == board[b] == board[c] == mark for a, b, c in _LINES)


def _marked(board: str, cell: int, mark: str) -> str:
    return board[:cell] + mark + board[cell + 1 :]


def best_tic_tac_toe(board: str, mark: str, rng: random.Random) -> int:
    """A perfect move for `mark`."""
    other = "o" if mark == "x" else "x"
    free = [cell for cell in range(9) if board[cell] == "."]
    values = {cell: -tic_tac_toe_value(_marked(board, cell, mark), other) for cell in free}
    best = max(values.values())
    return rng.choice([cell for cell in free if values[cell] == best])


def one_ply_tic_tac_toe(board: str, mark: str, rng: random.Random) -> int:
    """The cell of a player of one ply."""
    other = "o" if mark == "x" else "x"
    free = [cell for cell in range(9) if board[cell] == "."]
    return _one_ply(
        free,
        lambda cell: _has_three(_marked(board, cell, mark), mark),
        lambda cell: _has_three(_marked(board, cell, other), other),
        rng,
    )


# --- Connect Four: two bit sets of 7 columns x 7 bits, the seventh bit of a column stays empty ---

COLUMNS, ROWS = 7, 6
_COLUMN_ORDER = (3, 2, 4, 1, 5, 0, 6)
_BOTTOM = sum(1 << (7 * column) for column in range(COLUMNS))
_FULL = sum(((1 << ROWS) - 1) << (7 * column) for column in range(COLUMNS))
_WIN = 1_000


def has_four(stones: int) -> bool:
    """Returns whether a side's stones hold four in a row."""
    for shift in (1, 6, 7, 8):
        pairs = stones & (stones >> shift)
        if pairs & (pairs >> (2 * shift)):
            return True
    return False


def bit_sets(rows: list[str], mark: str) -> tuple[int, int]:
    """(stones of `mark`, all stones) of six rows of seven characters, the top row first."""
    mine = taken = 0
    for height, row in enumerate(reversed(rows)):
        for column, cell in enumerate(row):
            if cell != ".":
                bit = 1 << (7 * column + height)
                taken |= bit
                if cell == mark:
                    mine |= bit
    return mine, taken


def _landing(taken: int, column: int) -> int:
    """The bit where a stone in `column` comes to rest; 0 if the column is full."""
    column_bits = ((1 << ROWS) - 1) << (7 * column)
    return (taken + (_BOTTOM & (0x7F << (7 * column)))) & column_bits


def _search(mine: int, taken: int, depth: int, alpha: int, beta: int) -> int:
    """Value for the side to move, whose stones are `own`; wins count more the sooner they come."""
    if taken == _FULL:
        return 0
    landings = [bit for column in _COLUMN_ORDER if (bit := _landing(taken, column))]
    for bit in landings:
        if has_four(mine | bit):
            return _WIN + depth
    if depth == 0:
        return 0
    other = taken & ~mine
    for bit in landings:
        alpha = max(alpha, -_search(other, taken | bit, depth - 1, -beta, -alpha))
        if alpha >= beta:
            break
    return alpha


def best_connect_four(rows: list[str], mark: str, depth: int, rng: random.Random) -> int:
    """The column that alpha-beta over `depth` further moves likes best; sees every win within them.

    Depth-limited, so not perfect play: what lies beyond counts as a draw.
    """
    mine, taken = bit_sets(rows, mark)
    values: dict[int, int] = {}
    for column in range(COLUMNS):
        bit = _landing(taken, column)
        if not bit:
            continue
        if has_four(mine | bit):
            values[column] = _WIN + depth + 1
        else:
            bound = _WIN * 2
            values[column] = -_search(taken & ~mine, taken | bit, depth - 1, -bound, bound)
    best = max(values.values())
    return rng.choice([column for column, value in values.items() if value == best])


def one_ply_connect_four(rows: list[str], mark: str, rng: random.Random) -> int:
    """The column of a player of one ply."""
    mine, taken = bit_sets(rows, mark)
    other = taken & ~mine
    landings = {column: bit for column in range(COLUMNS) if (bit := _landing(taken, column))}
    return _one_ply(
        list(landings),
        lambda column: has_four(mine | landings[column]),
        lambda column: has_four(other | landings[column]),
        rng,
    )
