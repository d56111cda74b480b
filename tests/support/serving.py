"""The processes that serve stores' arenas, by their ids."""

from __future__ import annotations

from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.serve.server_process import ServingProcess


def process_id(serving: ServingProcess | None) -> int:
    """The process id of a serving process; 0 where there is none."""
    return serving._process.pid if serving is not None else 0


def serving_pid(store: TensorStore) -> int:
    """The process that serves a store's arena over the wire; 0 when none does."""
    return process_id(store._serving)
