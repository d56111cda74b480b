"""Slots under a bound against a plain cache: every row that a sequence relies on is there, of the right
token and version, whatever was copied, given back, preempted and evicted."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.rollout.engines.torch.prefix_cache import PrefixIndex, block_keys
from tests.support.sequences import Run


@settings(max_examples=30)
@given(st.data())
def test_what_is_relied_on_is_there(data):
    bound = data.draw(st.sampled_from([80, 128, 240, 320]))
    run = Run(bound, data.draw(st.booleans()), drafts=data.draw(st.booleans()))
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["submit", "submit", "step", "step", "step", "release", "update"]))
        if action == "submit":
            # Prefixes are common: a head of one token, many times, then something of its own.
            ids = [7] * data.draw(st.integers(0, 50)) + data.draw(
                st.lists(st.integers(0, 2), min_size=1, max_size=9)
            )
            run.submit(ids, data.draw(st.sampled_from(["", "s", "t"])))
        elif action == "release":
            run.scheduler.release(data.draw(st.sampled_from("st")))
        elif action == "update":
            run.update()
        else:
            run.step(data.draw(st.sampled_from([1, 5, 20, 100])))
    run.finish()


def test_the_index_finds_the_longest_prefix_and_forgets():
    index, ids = PrefixIndex(3), np.arange(80)
    keys = block_keys(ids)
    assert len(keys) == 5 and keys[:2] == block_keys(ids[:47])
    index.extend(0, ids[:40])
    index.extend(1, ids[:70])
    assert index.longest(keys) == (1, 4, False) and index.longest(keys[:1])[1:] == (1, False)
    index.expect(2, keys)
    assert index.longest(keys) == (1, 4, True)
    index.truncate(1, 35)
    assert index.longest(keys)[1] == 2
    index.give_up(2)
    assert not index.longest(keys)[2]
    index.truncate(0, 0)
    index.truncate(1, 0)
    assert index.longest(keys) == (-1, 0, False) and not index.blocks.any()
    index.extend(0, ids[:40])
    index.clear()
    assert index.longest(keys) == (-1, 0, False)
