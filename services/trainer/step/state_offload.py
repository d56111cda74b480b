"""A rank's parameters and moments out of its device's memory while engines sample.

    between two batches ── offload ──► host memory, pinned (CUDA) · a file, where a directory is given
                        ◄─ restore ──

The tensors stay, so that nothing which refers to them changes (FSDP2's modules, the optimizer): only their
storages are emptied and filled again, with the same bits. On a CPU without a file there is nowhere else to
put them: gradients and what the allocator keeps are returned all the same.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import torch
from torch.distributed.tensor import DTensor

from earl.errors import TrainerError
from earl.models.return_pages import return_pages
from services.trainer.step.step import Stepper

# Bytes at which each storage begins in the file: any dtype's.
ALIGNED = 64


class StateOffload:
    """Moves the state of one rank's stepper out of its device's memory, and back. No collective.

    file: where the state is put; None: host memory, which is where a rank on a CPU has it anyway.
    """

    def __init__(self, stepper: Stepper, file: Path | None = None) -> None:
        self._stepper = stepper
        self._file = file
        # The storages that were emptied, by their address, and their bytes: uint8 in host memory or mapped.
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self.offloaded = False

    @classmethod
    def of(cls, stepper: Stepper) -> StateOffload | None:
        """The offload of a rank's state; None unless rollout and trainer take turns on their devices."""
        config, file = stepper.config, None
        if not config.alternates:
            return None
        if directory := config.trainer.offload_dir:
            file = Path(directory).expanduser() / f"{config.name}-{stepper.group.rank}.state"
        return cls(stepper, file)

    def offload(self) -> None:
        """Frees gradients and moves parameters and moments out of the device's memory. Idempotent.

        Raises TrainerError if the file cannot be written; nothing was moved then.
        """
        if self.offloaded:
            return
        policy = self._stepper.policy
        policy.clear_gradients()
        policy.reshard()
        if policy.mesh.group.device.type != "cpu" or self._file is not None:
            storages = self._storages()
            copies = _pinned(storages) if self._file is None else _written(storages, self._file)
            for storage, copy in zip(storages, copies, strict=True):
                self._copies[storage._cdata] = storage, copy
                storage.resize_(0)
        self.offloaded = True
        return_pages()

    def restore(self) -> None:
        """Fills the device's memory again. Idempotent."""
        for storage, copy in self._copies.values():
            storage.resize_(copy.numel())
            _bytes_of(storage).copy_(copy)
        self._copies.clear()
        self.offloaded = False
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Within the block shards and moments can be read where they lie, not written or computed with."""
        if not self._copies:
            yield
            return
        moments = self._stepper.optimizer.moments
        parameters, pairs = self._parameters(), dict(moments)
        emptied = [parameter._local_tensor for parameter in parameters]
        try:
            for parameter, local in zip(parameters, emptied, strict=True):
                parameter._local_tensor = self._copy_of(local)
            for name, pair in pairs.items():
                moments[name] = [self._copy_of(moment) for moment in pair]
            yield
        finally:
            for parameter, local in zip(parameters, emptied, strict=True):
                parameter._local_tensor = local
            moments.update(pairs)

    def _copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        entry = self._copies.get(tensor.untyped_storage()._cdata)
        if entry is None:
            return tensor
        flat = entry[1].view(tensor.dtype)
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _parameters(self) -> list[DTensor]:
        return [cast(DTensor, parameter) for parameter in self._stepper.policy.decoder.parameters()]

    def _storages(self) -> list[torch.UntypedStorage]:
        """Every storage of parameters and moments that has memory, once."""
        tensors = [parameter._local_tensor for parameter in self._parameters()]
        tensors += [moment for pair in self._stepper.optimizer.moments.values() for moment in pair]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
        return [storage for storage in storages.values() if storage.nbytes()]


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage as uint8 [bytes], not copied."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def memory_at(address: int, size_bytes: int) -> memoryview:
    """Host memory as bytes, while its owner keeps it. After Tensor.numpy torch resizes a storage no more."""
    return memoryview((ctypes.c_char * size_bytes).from_address(address))


def _write(file: BinaryIO, storage: torch.UntypedStorage) -> None:
    """Appends the storage's bytes."""
    host = storage.cpu()
    file.write(memory_at(host.data_ptr(), host.nbytes()))
    file.write(bytes(-host.nbytes() % ALIGNED))


def _pinned(storages: Sequence[torch.UntypedStorage]) -> list[torch.Tensor]:
    """Copies in pinned host memory."""
    copies = []
    for storage in storages:
        copies.append(torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=True))
        copies[-1].copy_(_bytes_of(storage), non_blocking=True)
    torch.cuda.synchronize()
    return copies


def _written(storages: Sequence[torch.UntypedStorage], path: Path) -> list[torch.Tensor]:
    """Copies in a file, mapped: they take this process' memory once they are read. Raises TrainerError."""
    try:
        with open(path, "wb") as file:
            for storage in storages:
                _write(file, storage)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise TrainerError(
            f"the trainer's state cannot be written to {path}: {error}",
            "free that disk, or leave trainer.offload_dir empty",
        ) from error
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    copies, offset = [], 0
    for storage in storages:
        # A storage of its own for each: safetensors refuses tensors that share one.
        copies.append(torch.frombuffer(mapped, dtype=torch.uint8, count=storage.nbytes(), offset=offset))
        offset += storage.nbytes() + -storage.nbytes() % ALIGNED
    return copies
