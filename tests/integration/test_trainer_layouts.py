"""Four gloo ranks in every cut (dp, tp, cp) against one: equal steps, checkpoints in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from earl.parallelism import Parallelism
from services.trainer.checkpoint import checkpoint
from services.trainer.checkpoint.reader import SavedModel
from services.trainer.model.sharded_policy import CRITIC
from services.trainer.ranks.process_group import Group
from tests.support.layout_ranks import CONFIGS, RANKS, SCRATCH, compute, config_of, main
from tests.support.policy import gathered, model_directory, stepper_for
from tests.support.processes import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
QUICK = [
    ("full", "tp2·cp2"),
    ("adapters", "dp2·tp2"),
    ("full", "dp4"),
    ("sequences", "tp2·cp2"),
    ("critic", "tp2·cp2"),
    ("taught", "tp2·cp2"),
]
REST = [
    (name, layout)
    for name in CONFIGS
    for layout in ("dp4", "tp4", "cp4", "dp2·tp2", "dp2·cp2", "tp2·cp2")
    if (name, layout) not in QUICK
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one rank for each configuration; directory holds the others' files."""

    directory: Path
    group: Group
    alone: dict[str, dict[str, torch.Tensor]]

    def run(self, layouts: list[tuple[str, str]]) -> None:
        """All of these in one start of the ranks."""
        ended = run_ranks(main, RANKS, self.directory, layouts, timeout_s=240)
        assert ended == list(range(RANKS))

    def compare(self, name: str, layout: str) -> None:
        """Losses, norms and parameters of the cut with those of one rank."""
        found = load_file(self.directory / f"{name}-{layout}.safetensors")
        alone = self.alone[name]
        assert found.keys() == alone.keys()
        for key, tensor in alone.items():
            rtol, atol = (1e-3, 1e-5) if key.startswith("metric/") else (1e-4, 1e-5)
            torch.testing.assert_close(found[key], tensor, rtol=rtol, atol=atol, msg=f"{name} {layout} {key}")
        restored = {key for key in found if key.startswith("restored/")}
        exact = restored if not config_of(name).trainer.lora_rank else set()
        assert all(torch.equal(found[key], alone[key]) for key in exact), (
            "a checkpoint is restored bit for bit"
        )
        self._restore(name, layout, found)

    def _restore(self, name: str, layout: str, found: dict[str, torch.Tensor]) -> None:
        """One rank restores, and exports, what the cut saved, each tensor once."""
        stepper = stepper_for(self.group, self.directory / "model", config_of(name))
        saved = checkpoint.latest(self.directory / f"{name}-{layout}", stepper, self.group)
        assert saved is not None
        path, manifest = saved
        assert len(manifest.files) == RANKS
        if (name, layout) == ("full", "dp4"):
            uneven = manifest.tensors["model.layers.0.self_attn.q_norm.weight"]
            assert [rank for rank, *_ in uneven.parts] == [0, 1, 2]
        checkpoint.load(path, manifest, stepper)
        exported = dict(SavedModel(path, self.directory / "model").tensors(torch.float32))
        for key, tensor in gathered(stepper).items():
            # Adapters are added up where they are read: in another order than where they were trained.
            bound = 1e-6 if config_of(name).trainer.lora_rank else 0.0
            torch.testing.assert_close(tensor, found[f"trained/{key}"], rtol=bound, atol=bound, msg=key)
            if key == CRITIC:
                assert key not in exported
                continue
            torch.testing.assert_close(exported[key], tensor, rtol=bound, atol=bound, msg=key)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    directory = tmp_path_factory.mktemp("layouts")
    model_directory(directory, SCRATCH)
    torch.set_num_threads(1)
    group = Group("cpu")
    yield Outcome(
        directory, group, {name: compute(directory, group, name, Parallelism()) for name in CONFIGS}
    )
    group.close()


def test_ranks_in_a_layout_train_what_one_trains(outcome: Outcome) -> None:
    """One cut after the other in the same processes."""
    outcome.run(QUICK)
    for name, layout in QUICK:
        outcome.compare(name, layout)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_every_layout_of_four_ranks_trains_what_one_trains(outcome: Outcome) -> None:
    outcome.run(REST)
    for name, layout in REST:
        outcome.compare(name, layout)
