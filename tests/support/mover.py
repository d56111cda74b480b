"""Ranks that move tensors from cut to cut and say whether every bit came; under torch's environment.

Run by tests.support.processes.
"""

from __future__ import annotations

import errno
import os
from multiprocessing.connection import Connection

import numpy as np
import torch

from earl.dispatch.layout.box import Box
from earl.dispatch.layout.placements import Placement, placement_boxes
from earl.dispatch.plan.reshard_plan import Reshard
from services.trainer.ranks.process_group import Group, leave
from services.trainer.reshard.moving_tensor import MovingTensor, TensorMemory
from services.trainer.reshard.reshard import MoveReport, move

RANKS = 4
CHUNK_BYTES = 512
REPLICATE: Placement = ("replicate",)
# What tensor parallelism cuts, by name; 7 rows over 4 ranks are 2, 2, 2, 1 and 5 are 2, 2, 1, none.
SHAPES = {"embed": (29, 6), "rows": (12, 7), "columns": (7, 8), "norm": (5,), "head": (4, 3, 2)}
TENSOR_DIMENSION = {"rows": 0, "columns": 1, "head": 0}
WIDE = ("value", "first", "second")


def boxes(name: str, parallelism: str) -> tuple[Box, ...]:
    """Returns the boxes by rank. layout: "fsdp4", "tp2fsdp2" (fsdp over tp slices), "tp4", "copies"."""
    shape = SHAPES[name]
    of_tensor: Placement = ("shard", TENSOR_DIMENSION[name]) if name in TENSOR_DIMENSION else REPLICATE
    mesh, placements = {
        "fsdp4": ((RANKS,), [("shard", 0)]),
        "tp2fsdp2": ((2, 2), [of_tensor, ("shard", 0)]),
        "tp4": ((RANKS,), [of_tensor]),
        "copies": ((RANKS,), [REPLICATE]),
    }[parallelism]
    found: list[Box] = []
    for rank in range(RANKS):
        at = [int(i) for i in np.unravel_index(rank, mesh)]
        held = placement_boxes(shape, mesh, placements, at)
        found.append(held[0] if held else Box((0,) * len(shape), (0,) * len(shape)))
    return tuple(found)


def whole(name: str, column: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed_of(name, column))
    values = torch.randn(SHAPES[name], generator=generator)
    return values.bfloat16() if name == "head" else values


def seed_of(name: str, column: str) -> int:
    return 100 * list(SHAPES).index(name) + WIDE.index(column)


class Impatient(Group):
    """Time is over at the n-th agreement."""

    agreements_left = 10**6

    def agree(self, ok: bool) -> bool:
        self.agreements_left -= 1
        return super().agree(ok and self.agreements_left > 0)


class Ranks:
    def __init__(self) -> None:
        self.group = Impatient("cpu")
        self.wrong: list[str] = []
        self.moves: list[dict[str, int]] = []
        self.held = self._memories("fsdp4")
        for (name, column), memory in self.held.items():
            memory.values.copy_(whole(name, column)[memory.box.slices()])
        self.parallelism = "fsdp4"

    def _memories(self, parallelism: str) -> dict[tuple[str, str], TensorMemory]:
        found = {}
        for name in SHAPES:
            box = boxes(name, parallelism)[self.group.rank]
            for column in WIDE:
                # As FSDP2 pads: a row more than the box has.
                padded = torch.zeros((box.shape[0] + 1, *box.shape[1:]), dtype=whole(name, column).dtype)
                local = padded[: box.shape[0]]
                found[name, column] = TensorMemory(lambda local=local: local, box, local.element_size())
        return found

    def columns(self, parallelism: str) -> tuple[list[MovingTensor], dict[tuple[str, str], TensorMemory]]:
        new = self._memories(parallelism)
        found: list[MovingTensor] = []
        for (name, column), memory in new.items():
            memory.free()
            item_bytes = whole(name, column).element_size()
            reshard = Reshard(
                SHAPES[name], item_bytes, boxes(name, self.parallelism), boxes(name, parallelism)
            )
            found.append(MovingTensor(reshard, self.held[name, column], memory))
        return found, new

    def move(self, parallelism: str) -> None:
        columns, new = self.columns(parallelism)
        moved = move(columns, self.group, chunk_bytes=CHUNK_BYTES)
        self._note(moved, columns)
        for memory in self.held.values():
            self._expect(
                memory._local().untyped_storage().nbytes() == 0, f"{parallelism}: old memory is held"
            )
        self.held, self.parallelism = new, parallelism
        self.check(parallelism)

    def there_and_back(self, parallelism: str, agreements_left: int) -> None:
        """Time is over part way; what had moved goes back."""
        columns, _ = self.columns(parallelism)
        self.group.agreements_left = agreements_left
        moved = move(columns, self.group, chunk_bytes=CHUNK_BYTES)
        self.group.agreements_left = 10**6
        self._expect(0 < moved.tensors < len(columns), f"{moved.tensors} of {len(columns)} columns moved")
        back = [column.reversed() for column in columns[: moved.tensors]]
        self._note(move(back, self.group, chunk_bytes=CHUNK_BYTES), back)
        self.check(f"back from {parallelism}")

    def check(self, when: str) -> None:
        for (name, column), memory in self.held.items():
            expected = whole(name, column)[memory.box.slices()]
            self._expect(torch.equal(memory.values, expected), f"{when}: {name}, {column}")
            rest = memory._local().untyped_storage().nbytes() // expected.element_size() - expected.numel()
            if rest:
                padded = torch.empty(0, dtype=expected.dtype).set_(memory._local().untyped_storage())
                self._expect(not padded[expected.numel() :].any(), f"{when}: {name} is not padded with zeros")

    def _note(self, moved: MoveReport, columns: list[MovingTensor]) -> None:
        largest = max(column.new.size_bytes + column.old.size_bytes for column in columns)
        # Buffers of both directions, padded to 16 bytes a part, and what a round begins.
        bound = 3 * CHUNK_BYTES + 2 * largest + 16 * 2 * RANKS * len(columns)
        self._expect(moved.peak_extra_bytes <= bound, f"{moved} beyond {bound} bytes")
        self.moves.append({"sent_bytes": moved.sent_bytes, "peak_extra_bytes": moved.peak_extra_bytes})

    def _expect(self, ok: bool, what: str) -> None:
        if not ok:
            self.wrong.append(what)


def refused(*_: object) -> int:
    raise OSError(errno.EMFILE, "too many open files")


def main(pipe: Connection) -> None:
    """Sends what was wrong with the figures of its moves, then how a move ended in which rank 1 died."""
    torch.set_num_threads(1)
    ranks = Ranks()
    for parallelism in ("tp2fsdp2", "tp4", "fsdp4", "copies", "tp2fsdp2"):
        ranks.move(parallelism)
    # One that has nothing to share: then nobody does.
    create = os.memfd_create
    if ranks.group.rank == 2:
        os.memfd_create = refused
    ranks.move("tp4")
    os.memfd_create = create
    ranks.there_and_back("fsdp4", agreements_left=3)
    ranks.move("fsdp4")
    pipe.send({"rank": ranks.group.rank, "wrong": ranks.wrong, "moves": ranks.moves})
    if ranks.group.rank == 1:
        os._exit(9)
    try:
        ranks.move("tp4")
    except RuntimeError as error:
        pipe.send(type(error).__name__)
    leave(0)
