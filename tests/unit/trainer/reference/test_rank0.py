"""The reference stage's leases: short ones are quick, and one that is longer is not left waiting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from earl.config.run import RunConfig
from services.trainer.reference.rank0 import ReferenceRank0
from services.trainer.reference.reference_client import LeaseOffer


class Scheduler:
    """Has one trajectory of so many tokens waiting, and leases it to whoever may take it."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.asked: list[int] = []

    def lease(self, credit_tokens: int, wait_s: float) -> LeaseOffer:
        self.asked.append(credit_tokens)
        fits = self.tokens <= credit_tokens
        return LeaseOffer(b"lease" if fits else b"", 0 if fits else self.tokens, False)


def rank0(scheduler: Scheduler, **rollout: int) -> ReferenceRank0:
    config = RunConfig.model_validate({"name": "t", "environment": {"name": "e"}, "rollout": rollout})
    made = ReferenceRank0.__new__(ReferenceRank0)
    stage = SimpleNamespace(parallelism=SimpleNamespace(dp=1), poll=lambda call: call())
    fields: dict[str, Any] = {
        "_config": config, "stage": stage, "_leases": scheduler, "_refused": False,
        "_role": "reference",
        "_activity": SimpleNamespace(gauges={}),
    }  # fmt: skip
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_trajectory_longer_than_a_lease_gets_one_of_its_own():
    scheduler = Scheduler(100_000)
    leads = rank0(scheduler, held_context_tokens=1 << 20)
    offers = [leads._offer(1 << 30) for _ in range(2)]
    assert [offer is not None and bool(offer.lease) for offer in offers] == [False, True]
    # What a forward pass takes; then all that a context may have; and again the first.
    leads._offer(1 << 30)
    assert scheduler.asked == [16_384, 1 << 20, 16_384]
    assert leads._activity.gauges["arena_full"] == 1.0
