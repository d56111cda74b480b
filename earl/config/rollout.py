"""`[rollout]`: engines and the agent loop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection


class RolloutConfig(ConfigSection):
    engine: Literal["torch", "vllm", "sglang"] = "torch"
    # Python interpreter of the engine's own environment (docs/engines.md); empty: the one that
    # `make setup-vllm` makes for "vllm", the service's own for "torch".
    engine_python: str = ""
    # Rollout services on this machine; each has a pool of engines x tp devices.
    workers: int = Field(default=1, ge=1)
    engines: int = Field(default=1, ge=1)
    tp: int = Field(default=1, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # torch threads of each engine process.
    threads: int = Field(default=1, ge=1)
    # What the engine computes in; empty: model.dtype. "auto": bfloat16 if the device computes it without
    # emulation, else float32; decided once, by the machine that launches the run.
    dtype: Literal["", "float32", "bfloat16", "auto"] = ""
    # Tokens that the KV cache of one engine holds; when they are used up the youngest sequences are
    # put back and computed again later. 0: max_sequences x max_context_tokens.
    kv_tokens: int = Field(default=0, ge=0)
    # Sequences in the KV cache of one engine at once, and their longest length.
    max_sequences: int = Field(default=64, ge=1)
    max_context_tokens: int = Field(default=256, ge=8)
    # Longest answer of one turn.
    max_new_tokens: int = Field(default=16, ge=1)
    # What a running sequence's KV becomes when new weights arrive.
    kv_on_update: Literal["keep", "recompute"] = "keep"
    # Episodes that one worker runs at once; 0: as many as its engines hold sequences.
    episodes: int = Field(default=0, ge=0)
    # Finished trajectories that wait for the trainer; while there is no room for more, workers pause.
    # 0: what (staleness + 2) batches of the longest episodes need, at least 64 MiB.
    arena_bytes: int = Field(default=0, ge=0)
    # How often a worker starts an engine again that died, before it gives up itself.
    engine_restarts: int = Field(default=2, ge=0)
    # How long running episodes may continue after SIGTERM.
    drain_s: float = Field(default=5.0, ge=0)
    # How long it then continues to serve trajectories that are not trained yet, while other workers play.
    # What is not trained by then is played again.
    linger_s: float = Field(default=0.0, ge=0)
    bind: str = "127.0.0.1:0"
