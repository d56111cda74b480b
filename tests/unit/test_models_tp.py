"""A decoder cut over two ranks computes and learns what a whole one does."""

import subprocess
import sys

from earl.config.model import ModelConfig
from earl.models.create import create_model

SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist

from earl.models.module import Decoder
from earl.models.parallel import TensorParallel
from earl.models.slices import tp_box
from earl.models.spec import load_spec
from earl.models.weights import load_decoder

directory, store, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
spec = load_spec(directory)
whole, part = Decoder(spec), Decoder(spec, TensorParallel(rank, size, dist.group.WORLD))
generator = torch.Generator().manual_seed(1)
tokens, targets = torch.randint(spec.vocab, (2, 30), generator=generator)
positions = torch.cat((torch.arange(20), torch.arange(10)))
results = []
for decoder in (whole, part):
    load_decoder(decoder, directory)
    logprobs, entropy = decoder(tokens, positions, [20, 10], targets)
    (logprobs.mean() + entropy.mean()).backward()
    results.append((logprobs, entropy))
for ours, wanted in zip(*reversed(results)):
    assert torch.allclose(ours, wanted, atol=1e-5)
gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
for name, parameter in part.named_parameters():
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        dist.all_reduce(parameter.grad)  # of a rank's own heads only
    if "k_proj" in name or "v_proj" in name:
        # A key-value head that ranks share: each has the gradient of its own queries.
        sharing = max(1, size // spec.kv_heads)
        gradients_of_all = [torch.empty_like(parameter.grad) for _ in range(size)]
        dist.all_gather(gradients_of_all, parameter.grad)
        first = rank // sharing * sharing
        parameter.grad = sum(gradients_of_all[first : first + sharing])
    box = tp_box(name, spec.shapes()[name], spec, rank, size)
    assert torch.allclose(parameter.grad, gradients[name][box.slices()], atol=1e-5), name
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
