"""The engine contract's parts on devices of which there are few."""

import pytest

from tests.support import engines


def test_a_test_that_needs_more_gpus_than_there_are_is_skipped(monkeypatch):
    monkeypatch.setattr(engines, "MOST_RANKS", 2)
    engines.needs_ranks(2)
    with pytest.raises(pytest.skip.Exception, match="tp 4 needs 4 GPUs, and there are 2"):
        engines.needs_ranks(4)
