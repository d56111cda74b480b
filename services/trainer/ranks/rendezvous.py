"""The rendezvous of the ranks of one machine: PyTorch's store, on loopback.

It knows no tokens: everyone who reaches it can read and change what the ranks exchange. torchrun's own
listens at every address of the machine, so here the agent gives it a socket that is bound already.
"""

from __future__ import annotations

import socket

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

BACKEND = "earl-loopback"
LOOPBACK = "127.0.0.1"


class OneMachine(RendezvousHandler):
    """The rendezvous of an agent that starts all ranks itself; they take part in its store."""

    def __init__(self, run_id: str) -> None:
        with socket.create_server((LOOPBACK, 0)) as listener:
            self._port = listener.getsockname()[1]
            self._store = TCPStore(
                LOOPBACK,
                self._port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),  # the store's from now on
            )
        self._run_id = run_id

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, self._port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def _make_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    return OneMachine(parameters.run_id)


rendezvous_handler_registry.register(BACKEND, _make_handler)
