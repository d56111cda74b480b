"""The launcher of ranks with versions of torch that take different options."""

from __future__ import annotations

from services.trainer.launch import LOST_S, shutdown_options


class Older:
    """The options of torch 2.11, as far as they matter here."""

    def __init__(self, min_nodes: int, max_nodes: int) -> None: ...


class Newer:
    """The options of torch 2.13, as far as they matter here."""

    def __init__(self, min_nodes: int, max_nodes: int, shutdown_timeout: int = 30) -> None: ...


def test_a_torch_that_takes_no_bound_of_its_end_is_given_none():
    assert shutdown_options(Older) == {}
    assert shutdown_options(Newer) == {"shutdown_timeout": LOST_S}
