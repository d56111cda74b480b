"""EARL's part of every vLLM worker (`worker_extension_cls`): this rank's weights, and the sampler.

    earl_begin ──► WeightStager's thread finds this rank's slices ──► staged      (generation continues)
    earl_apply ──► vLLM's own reload, layer by layer, from where the slices lie, between two steps

vLLM calls the methods by name on each rank; they take and return bytes and numbers only.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from vllm.config import set_current_vllm_config  # pyright: ignore[reportMissingImports]
from vllm.model_executor.model_loader.reload.layerwise import (  # pyright: ignore[reportMissingImports]
    finalize_layerwise_reload,
)

from earl.errors import EarlError
from earl.models.slices import rank_parameters
from earl.models.spec import load_spec
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import EngineSpec, LoadReport
from services.rollout.engines.contract.mapped_tensor import as_tensor
from services.rollout.engines.contract.shard_report import ShardReport
from services.rollout.engines.contract.weight_staging import StagedVersion, WeightStager
from services.rollout.engines.vllm.sampler import SeededSampler


class EarlWorker:
    """Mixed into vLLM's worker class; `self` is the worker."""

    model_runner: Any
    vllm_config: Any
    rank: int

    def earl_open(self, spec: bytes) -> int:
        """Installs the sampler and makes the stager; its wake descriptor (of use in this process only)."""
        engine = msgspec.msgpack.decode(spec, type=EngineSpec)
        model = load_spec(engine.model_dir)
        self.earl_shapes = model.shapes()
        self.earl_parameters = rank_parameters(model, self.rank, engine.tp)
        self.earl_data = DataThread(engine)
        self.earl_stager = WeightStager(engine, self.earl_data, self.earl_parameters, self.earl_shapes)
        self.model_runner.sampler = SeededSampler(self.model_runner)
        if engine.drafts:
            self.model_runner.drafter.bind(self.model_runner)
        if engine.tp > 1:
            threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
        return self.earl_data.wake

    def earl_begin(self, call: int, version: int, keys: list[str], deadline_s: float) -> None:
        """Starts reading a version."""
        self.earl_stager.begin(call, version, keys, deadline_s)

    def earl_drop(self) -> None:
        """Drops what is staged."""
        self.earl_stager.drop()

    def earl_take(self) -> list[bytes]:
        """Encoded ShardReports, of each load that ended since the last call."""
        data = self.earl_data
        reports = [ShardReport.of(call, outcome, data.transfers) for call, outcome in data.take()]
        return [wire.encoder.encode(report) for report in reports]

    def earl_check(self, version: int) -> bytes:
        """Returns an encoded ShardReport of call 0, with the reason if the version cannot be applied now."""
        error = None
        try:
            self.earl_stager.take(version)
        except EarlError as reason:
            error = wire.WireError.of(reason)
        return wire.encoder.encode(ShardReport(0, error, None, self.earl_data.transfers))

    def earl_apply(self, version: int) -> bytes:
        """Puts the staged version to use. Returns an encoded ShardReport of call 0; with an error in it the
        weights are neither the old version nor the new one."""
        data = self.earl_data
        try:
            staged, started = self.earl_stager.take(version), time.perf_counter()
            with set_current_vllm_config(self.vllm_config), torch.inference_mode():
                try:
                    self.model_runner.reload_weights(weights_iterator=self._earl_weights(staged))
                except BaseException:
                    # Layers that wait for the rest of their tensors are put back into a state that a
                    # later load can start from.
                    finalize_layerwise_reload(self.model_runner.get_model(), self.vllm_config.model_config)
                    raise
                self._earl_tie()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.earl_stager.applied(staged, time.perf_counter() - started)
        except Exception as error:  # noqa: BLE001  (the engine gets it and refuses to generate)
            return wire.encoder.encode(ShardReport(0, wire.WireError.of(error), None, data.transfers))
        applied = LoadReport(version=version, size_bytes=staged.size_bytes, read_s=0.0)
        return wire.encoder.encode(ShardReport(0, None, applied, data.transfers))

    def _earl_weights(self, staged: StagedVersion) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors, one at a time, of which only this rank's slice is written: vLLM's loaders take that
        slice out again."""
        for name, array, dtype in staged.tensors():
            part = as_tensor(array).view(getattr(torch, dtype))
            if part.shape != self.earl_shapes[name]:
                whole = torch.empty(self.earl_shapes[name], dtype=part.dtype)
                (only,) = self.earl_parameters[name].parts
                whole[only.box.slices()] = part
                part = whole
            yield name, part

    def _earl_tie(self) -> None:
        """A head that is the embedding gets no tensor of its own, so the reload leaves what vLLM derived
        from its old weights (on CPUs a packed copy): derived again here."""
        if self.earl_parameters["lm_head.weight"].same_as:
            model = self.model_runner.get_model()
            model.lm_head.weight = model.model.embed_tokens.weight
            model.lm_head.quant_method.process_weights_after_loading(model.lm_head)

    def earl_draft_counts(self) -> bytes:
        """Encoded DraftCounts since the last call."""
        return wire.encoder.encode(self.model_runner.drafter.drafting.take())

    def earl_close(self) -> None:
        """Stops the data plane's thread."""
        self.earl_data.close()


def _end_with_parent() -> None:
    """A worker has nothing to save: it ends as soon as the engine process has, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(0)
