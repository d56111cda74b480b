"""A decoder over two ranks, by slices (tp) or by rows (cp), computes and learns what a whole one does."""

import subprocess
import sys

import pytest

from earl.config.model import ModelConfig
from earl.errors import IllegalParallelism
from earl.models.create import create_model
from earl.models.spec import ModelSpec
from earl.models.tp import check_parallelism, legal_parallelisms
from earl.parallelism import Parallelism

SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist

from earl.models.module import Decoder
from earl.models.parallel import ContextParallel, TensorParallel
from earl.models.slices import tp_box
from earl.models.spec import load_spec
from earl.models.weights import load_decoder

directory, store, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
spec = load_spec(directory)
shared = max(1, size // spec.kv_heads)
tensor = TensorParallel(rank, size, dist.group.WORLD, dist.group.WORLD if shared > 1 else None, shared)
context = ContextParallel(rank, size, dist.group.WORLD)
generator = torch.Generator().manual_seed(1)
# Three sequences, 20, 10 and 9 tokens; the last begins like the one before.
lengths, heads = [20, 10, 9], [0, 0, 4]
tokens, targets = torch.randint(spec.vocab, (2, 35), generator=generator)
positions = torch.cat((torch.arange(20), torch.arange(10), torch.arange(4, 9)))


def learn(tp, cp, own, rows):
    decoder = Decoder(spec, tp, cp)
    load_decoder(decoder, directory)
    start = own.start or 0
    results = decoder(tokens[own], positions[own], lengths, targets[rows], 1.0, rows - start, heads)
    sum((one / 35).sum() for one in results).backward()
    return decoder, results


every, mine = torch.arange(35), torch.arange(35)[rank::size]
whole, wanted = learn(TensorParallel(), ContextParallel(), slice(0, 35), every)
gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
start, stop = context.rows(35)
for tp, cp, own, rows in (
    (tensor, ContextParallel(), slice(0, 35), mine),
    (TensorParallel(), context, slice(start, stop), every[start:stop]),
):
    part, ours = learn(tp, cp, own, rows)
    for one, other in zip(ours, wanted):
        assert torch.allclose(one, other[rows], atol=1e-5)
    for name, parameter in part.named_parameters():
        if cp.size > 1 or not name.startswith("model.layers."):
            dist.all_reduce(parameter.grad)
        box = tp_box(name, spec.shapes()[name], spec, tp.rank, tp.size)
        assert torch.allclose(parameter.grad, gradients[name][box.slices()], atol=1e-5), (tp.size, name)
dist.barrier()
os._exit(0)  # gloo's threads may abort an orderly exit
"""


def test_two_ranks_equal_one(tmp_path):
    for family, kv_heads in (("qwen2", 2), ("qwen3", 1)):
        sizes = {"family": family, "hidden_size": 32, "heads": 4, "kv_heads": kv_heads, "words": ["a", "b"]}
        model = create_model(tmp_path / family, ModelConfig.model_validate({"scratch": sizes}), 0)
        store = str(tmp_path / f"store-{family}")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(model), store, str(rank), "2"], stderr=subprocess.PIPE
            )
            for rank in range(2)
        ]
        for rank in ranks:
            _, errors = rank.communicate(timeout=60)
            assert rank.returncode == 0, errors.decode()


def test_what_does_not_divide_is_refused_with_what_does():
    spec = ModelSpec("llama", 24, 2, 8, 2, 4, 48, 29, tied=True)
    for tp, cp in ((1, 8), (2, 4), (8, 1), (4, 2)):
        check_parallelism(spec, tp, cp)
    with pytest.raises(IllegalParallelism, match=r"cp 4 .* 2 heads and 1 kv_heads .* cp 1 or 2 with tp 4"):
        check_parallelism(spec, 4, 4)
    with pytest.raises(IllegalParallelism, match="tp 3"):
        check_parallelism(spec, 3, 1)
    degrees = [(one.dp, one.tp, one.cp) for one in legal_parallelisms(spec, 4)]
    assert degrees == [(4, 1, 1), (2, 1, 2), (1, 1, 4), (2, 2, 1), (1, 2, 2), (1, 4, 1)]
    assert legal_parallelisms(spec, 3) == [Parallelism(3)]
