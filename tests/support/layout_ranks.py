"""Several cuts of the same four ranks, one after the other, that train the same batches.

The other side of tests/integration/test_trainer_layouts.py: in each cut the ranks train two batches, save,
restore what one rank saved, and train on; rank 0 writes what came of it.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors.torch import save_file

from earl.config.model import ScratchModel
from earl.config.run import RunConfig
from earl.parallelism import Parallelism
from services.trainer.checkpoint import checkpoint
from services.trainer.ranks.process_group import Group, leave
from tests.support.policy import (
    ADAPTED_CONFIG,
    CRITIC_CONFIG,
    RANKS_CONFIG,
    SEQUENCES_CONFIG,
    TAUGHT_CONFIG,
    configuration,
    gathered,
    progress_at,
    stepper_for,
    taught,
    train,
)

RANKS = 4
# Sequences of a batch: more than one for each rank and minibatch, and not as many for each.
COUNT = 9
# Four tp ranks share two key-value heads; of 6 elements of a head's norm the last of 4 ranks gets none.
SCRATCH = ScratchModel(
    family="qwen3", hidden_size=24, intermediate_size=28, layers=2, heads=4, kv_heads=2, embedding_std=0.5
)
CONFIGS = {
    "full": RANKS_CONFIG,
    "adapters": ADAPTED_CONFIG,
    "sequences": SEQUENCES_CONFIG,
    "critic": CRITIC_CONFIG,
    "taught": TAUGHT_CONFIG,
}
# Weights of the teacher in a batch.
TAUGHT = {"teacher_weight": 0.5}


def config_of(name: str) -> RunConfig:
    config = configuration(**CONFIGS[name])
    return taught(config) if name == "taught" else config


def compute(directory: Path, group: Group, name: str, layout: Parallelism) -> dict[str, torch.Tensor]:
    """Returns what came of two batches in this cut, by names; a collective."""
    stepper = stepper_for(group, directory / "model", config_of(name), layout)
    found: dict[str, torch.Tensor] = {}
    for batch in (1, 2):
        metrics = train(stepper, batch, COUNT, **(TAUGHT if name == "taught" else {}))
        found |= {f"metric/{batch}/{key}": torch.tensor(value) for key, value in metrics.items()}
    found |= {f"trained/{key}": tensor for key, tensor in gathered(stepper).items()}
    checkpoint.save(directory / f"{name}-{layout}", stepper, group, progress_at(stepper, 3), "hash", keep=1)
    one = checkpoint.latest(directory / f"{name}-{Parallelism()}", stepper, group)
    assert one is not None
    checkpoint.load(*one, stepper)
    found |= {f"restored/{key}": tensor for key, tensor in gathered(stepper).items()}
    train(stepper, 3, COUNT, **(TAUGHT if name == "taught" else {}))
    found |= {f"continued/{key}": tensor for key, tensor in gathered(stepper).items()}
    stepper.mesh.close()
    return found


def main(pipe: Connection, directory: Path, layouts: list[tuple[str, str]]) -> None:
    """Sends its rank at the end."""
    torch.set_num_threads(1)
    group = Group("cpu")
    for name, layout in layouts:
        found = compute(directory, group, name, Parallelism.parse(layout))
        if group.leads:
            save_file(found, directory / f"{name}-{layout}.safetensors")
    group.barrier()
    group.close()
    pipe.send(group.rank)
    leave(0)
