"""Memory at 70B sizes: the longest contexts that fit, and the paper's claims."""

from __future__ import annotations

from benchmarks.paper import memory70b


def test_the_longest_context_is_the_last_that_fits() -> None:
    assert memory70b.longest(lambda tokens: tokens / 10_000) == 39 * 256
    assert memory70b.longest(lambda tokens: 0.5) == memory70b.MOST_TOKENS
    assert memory70b.longest(lambda tokens: 1.5) == 0
    fraction = memory70b.rollout_fraction(4, 64)
    held = memory70b.longest(fraction)
    assert fraction(held) <= 1.0 < fraction(held + memory70b.STEP_TOKENS)


def test_the_weights_are_split_over_tp() -> None:
    """A rank of TP4 has a quarter of 145 GB, one of TP8 an eighth."""
    for tp in (4, 8):
        weights = memory70b.MODEL.size_bytes("bfloat16") / tp / memory70b.DEVICE_BYTES
        assert weights < memory70b.rollout_fraction(tp, 1)(256) < weights + 0.1


def test_claims_say_what_is_predicted() -> None:
    predicted = {claim["claim"]: claim["predicted"] for claim in memory70b.claims()}
    assert predicted["TP4 runs out of memory with 128 responses of 32K tokens"]
    assert not predicted["TP8 does not run out of memory with 128 responses of 32K tokens"]
