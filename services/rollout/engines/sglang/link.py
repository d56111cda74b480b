"""The calls that EARL makes into SGLang 0.5.23, each one of its Engine's own: nothing of it is changed.

Engine starts a scheduler process a rank and keeps its tokenizer manager here, on an event loop. That
loop runs in a thread; these methods are called from the engine's own thread and wait for the answer,
except `generate` and `abort`. Of the pause modes, in_place keeps the KV of running requests, retract
has it computed again, abort ends them.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from earl.errors import EngineError
from services.rollout.engines.contract.engine import EngineSpec

# Bound of a call that waits for the step that runs, and of putting weights to use.
CALL_S = 60.0
# A prompt may have 6 tokens fewer than SGLang's context.
SPARE_TOKENS = 8
PauseMode = Literal["abort", "in_place", "retract"]
# What comes of a request: a chunk, the last chunk, or the error that ended it.
Output = dict[str, Any] | Exception


def kv_tokens_of(spec: EngineSpec) -> int:
    """Tokens that the KV cache holds for sequences."""
    return max(spec.kv_tokens or spec.max_sequences * spec.max_context_tokens, spec.max_context_tokens)


def server_args(spec: EngineSpec, model_dir: str, device: str) -> dict[str, Any]:
    """ServerArgs of SGLang for this spec. Token ids only; a token's version is that of the step that
    sampled it, so steps do not overlap; on a CPU the one attention that needs no kernels of SGLang's."""
    arguments: dict[str, Any] = {
        "model_path": model_dir,
        "skip_tokenizer_init": True,
        "load_format": "auto" if spec.load_initial else "dummy",
        "weight_version": "0",
        "dtype": spec.dtype,
        "tp_size": spec.tp,
        "device": device,
        # SGLang takes prompts that leave SPARE_TOKENS free; admission.py bounds them at what EARL promises.
        "context_length": spec.max_context_tokens + SPARE_TOKENS,
        "max_running_requests": spec.max_sequences,
        "max_total_tokens": kv_tokens_of(spec) + max(SPARE_TOKENS, spec.max_sequences),
        # Generation ends at a request's stop ids, not at what the model's files call its end.
        "json_model_override_args": '{"eos_token_id": null}',
        "page_size": 1,
        "disable_overlap_schedule": True,
        "stream_interval": 1,
        "sleep_on_idle": True,
        "log_level": "error",
    }
    if spec.prefill_tokens:
        arguments["chunked_prefill_size"] = spec.prefill_tokens
    if spec.sleeps:
        arguments["enable_memory_saver"] = True
    if device == "cpu":
        arguments |= {
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "disable_cuda_graph": True,
            "mem_fraction_static": 0.2,
        }
    else:
        # A request's sampling_seed counts only so.
        arguments["enable_deterministic_inference"] = True
    return arguments


@contextmanager
def _without_generation_config(model_dir: str) -> Iterator[str]:
    """The model's directory as SGLang is to see it: generation_config.json would add end tokens."""
    with tempfile.TemporaryDirectory(prefix="earl-sglang-") as directory:
        for file in Path(model_dir).iterdir():
            if file.name != "generation_config.json":
                (Path(directory) / file.name).symlink_to(file.resolve())
        yield directory


class SglangLink:
    """One SGLang Engine. Raises EngineError if it does not start or refuses a call."""

    def __init__(self, spec: EngineSpec, device: str) -> None:
        from sglang.srt.entrypoints.engine import Engine  # pyright: ignore[reportMissingImports]

        os.environ.setdefault("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")
        try:
            with _without_generation_config(spec.model_dir) as directory:
                self._engine: Any = Engine(**server_args(spec, directory, device))
        except (ValueError, RuntimeError, OSError, NotImplementedError, AssertionError) as error:
            raise EngineError(
                f"SGLang could not start engine {spec.name} with {spec.model_dir!r}: {error}",
                "see its log on stderr",
            ) from error
        self._manager: Any = self._engine.tokenizer_manager
        self._loop: asyncio.AbstractEventLoop = self._engine.loop
        self._tasks: set[asyncio.Task] = set()
        threading.Thread(target=self._loop.run_forever, name="sglang", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        """Processes that SGLang started."""
        return [int(pid) for pid in self._engine.get_all_child_pids()]

    def _wait(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(CALL_S)

    def generate(
        self,
        request_id: str,
        ids: list[int],
        sampling: dict[str, Any],
        salt: str,
        stream: bool,
        receive: Callable[[str, Output], None],
    ) -> None:
        """Starts a request; `receive` is called in the loop's thread with everything that comes of it."""

        async def consume() -> None:
            try:
                outputs = self._engine.async_generate(
                    input_ids=ids,
                    sampling_params=sampling,
                    return_logprob=True,
                    stream=stream,
                    rid=request_id,
                    cache_salt=salt,
                )
                if not stream:
                    receive(request_id, await outputs)
                    return
                async for output in await outputs:
                    receive(request_id, output)
            except Exception as error:  # noqa: BLE001  (the caller of the request gets it)
                receive(request_id, error)

        def start() -> None:
            task = self._loop.create_task(consume())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._loop.call_soon_threadsafe(start)

    def abort(self, request_id: str) -> None:
        """Has a request end with what it has; its last output has the reason "abort"."""
        self._loop.call_soon_threadsafe(self._manager.abort_request, request_id)

    def pause(self, mode: PauseMode) -> None:
        """Returns when no step runs any more."""
        from sglang.srt.managers.io_struct import (  # pyright: ignore[reportMissingImports]
            PauseGenerationReqInput,
        )

        async def pause() -> None:
            await self._manager.pause_generation(PauseGenerationReqInput(mode=mode))
            # The pause itself is not answered; this is, after it.
            await self._manager.get_internal_state()
            # Chunks that came before the answer are handed on before this returns.
            for _ in range(16):
                await asyncio.sleep(0)

        self._wait(pause())

    def resume(self) -> None:
        from sglang.srt.managers.io_struct import (  # pyright: ignore[reportMissingImports]
            ContinueGenerationReqInput,
        )

        request = ContinueGenerationReqInput(torch_empty_cache=False)
        self._wait(self._manager.continue_generation(request))

    def release_memory(self) -> None:
        """Returns the memory of weights and KV; no request may be in flight."""
        from sglang.srt.managers.io_struct import (  # pyright: ignore[reportMissingImports]
            ReleaseMemoryOccupationReqInput,
        )

        self._wait(self._manager.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=None), None))

    def take_memory(self) -> None:
        """Takes the memory again; weights are then to be updated."""
        from sglang.srt.managers.io_struct import (  # pyright: ignore[reportMissingImports]
            ResumeMemoryOccupationReqInput,
        )

        self._wait(self._manager.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=None), None))

    def update(self, version: int, tensors: list[tuple[str, Any]], flush: bool) -> None:
        """One weight-update session: begin, whole tensors (every rank takes its own slice), end. The
        engine must be paused. flush: drop the prefix cache. Raises EngineError with SGLang's message."""
        from sglang.srt.managers.io_struct import (  # pyright: ignore[reportMissingImports]
            BeginWeightUpdateReqInput,
            EndWeightUpdateReqInput,
            UpdateWeightsFromTensorReqInput,
        )

        async def update() -> None:
            self._check(await self._manager.begin_weight_update(BeginWeightUpdateReqInput(), None))
            try:
                request = UpdateWeightsFromTensorReqInput(
                    serialized_named_tensors=self._engine._serialize_tensors_per_rank(tensors, None),
                    flush_cache=flush,
                    weight_version=str(version),
                )
                self._check(await self._manager.update_weights_from_tensor(request, None))
            finally:
                self._check(await self._manager.end_weight_update(EndWeightUpdateReqInput(), None))

        self._wait(update())

    def _check(self, answer: tuple[bool, str]) -> None:
        success, message = answer
        if not success:
            raise EngineError(f"SGLang refused a weight update: {message}")
