"""Ranks that compute and learn with a part of a decoder what each also does with the whole one.

Run by tests.support.processes: whatever differs ends the rank with an error.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from earl.models.module import Decoder
from earl.models.parallel import ContextParallel, TensorParallel
from earl.models.slices import tp_box
from earl.models.spec import load_spec
from earl.models.weights import load_decoder

# Three sequences, 20, 10 and 9 tokens; the last begins like the one before.
LENGTHS, HEADS, ROWS = [20, 10, 9], [0, 0, 4], 35


def compare(pipe: Connection, directory: Path) -> None:
    """Compares slices (tp), then rows (cp), over all ranks; sends True."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    spec = load_spec(directory)
    shared = max(1, size // spec.kv_heads)
    group = dist.group.WORLD
    assert group is not None
    tensor = TensorParallel(rank, size, group, group if shared > 1 else None, shared)
    context = ContextParallel(rank, size, group)
    generator = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(spec.vocab, (2, ROWS), generator=generator)
    positions = torch.cat((torch.arange(20), torch.arange(10), torch.arange(4, 9)))

    def learn(
        tp: TensorParallel, cp: ContextParallel, own: slice, rows: torch.Tensor
    ) -> tuple[Decoder, tuple[torch.Tensor, ...]]:
        decoder = Decoder(spec, tp, cp)
        load_decoder(decoder, directory)
        given = tokens[own], positions[own], LENGTHS, targets[rows], 1.0, rows - own.start, HEADS
        results = decoder(*given)
        torch.stack([(one / ROWS).sum() for one in results]).sum().backward()
        return decoder, results

    every, mine = torch.arange(ROWS), torch.arange(ROWS)[rank::size]
    whole, wanted = learn(TensorParallel(), ContextParallel(), slice(0, ROWS), every)
    gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
    start, stop = context.rows(ROWS)
    for tp, cp, own, rows in (
        (tensor, ContextParallel(), slice(0, ROWS), mine),
        (TensorParallel(), context, slice(start, stop), every[start:stop]),
    ):
        part, ours = learn(tp, cp, own, rows)
        for one, other in zip(ours, wanted, strict=True):
            assert torch.allclose(one, other[rows], atol=1e-5)
        for name, parameter in part.named_parameters():
            whole_gradient = gradients[name]
            assert parameter.grad is not None and whole_gradient is not None
            if cp.size > 1 or not name.startswith("model.layers."):
                dist.all_reduce(parameter.grad)
            box = tp_box(name, spec.shapes()[name], spec, tp.rank, tp.size)
            assert torch.allclose(parameter.grad, whole_gradient[box.slices()], atol=1e-5), (tp.size, name)
    dist.barrier()
    pipe.send(True)
    os._exit(0)  # gloo's threads may abort an orderly exit
