"""`[rollout]`: engines and the agent loop."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.config.devices import Devices
from earl.config.takes import Takes


class RolloutConfig(ConfigSection):
    # Inference engine: EARL's own ("torch"), vLLM or SGLang (docs/engines.md compares them).
    #
    # "torch" needs nothing else and is the only one for deterministic runs. Try "vllm" or "sglang" for large
    # models on GPUs; each needs a Python environment of its own.
    engine: Literal["torch", "vllm", "sglang"] = "torch"
    # Python interpreter of the engine's own environment (docs/engines.md). Empty: for "vllm" the one that
    # `make setup-vllm` makes, if there is one, otherwise, as for "torch", the service's own.
    #
    # Set it for "sglang", and for a vLLM that is installed elsewhere.
    engine_python: str = ""
    # Rollout workers on this machine; each has a pool of engines x tp devices.
    #
    # Raise it if one worker's process, which talks to the environment for all of its engines, uses a whole
    # core.
    workers: int = Field(default=1, ge=1)
    # Engines of each worker when the run starts (data parallelism).
    #
    # More engines play more episodes at once; each needs tp devices, or on a CPU free cores.
    engines: int = Field(default=1, ge=1)
    # Devices of each engine when the run starts (tensor parallelism).
    #
    # Raise it if the model or its longest contexts do not fit into the memory of one device.
    tp: int = Field(default=1, ge=1)
    # Where engines compute; "auto" takes a GPU if there is one.
    #
    # Set "cpu" to leave the GPU to the trainer, "cuda" to have a missing GPU reported instead of computing on
    # the processor.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Devices of all workers of this machine together: "auto", how many, or their numbers in a text. Without
    # GPUs a device is a slot of the processor.
    #
    # Leave it at "auto" unless other programs use some of the GPUs; "4-7" keeps the engines to those.
    devices: Devices = "auto"
    # torch threads of each engine process. 0: one on a GPU; on a CPU the machine's cores over all ranks of
    # the run that compute there, decided once by the machine that starts the run.
    #
    # Give a number if a run must be repeated bit for bit on another machine. On a CPU, engines x tp x threads
    # plus the trainer's ranks x threads should not exceed the cores.
    threads: int = Field(default=0, ge=0)
    # Dtype in which engines compute; empty: model.dtype. "auto": bfloat16 if the device computes it without
    # emulation, else float32, decided once by the machine that starts the run.
    #
    # Set "float32" if logprob_mismatch is large and the trainer computes in float32.
    dtype: Literal["", "float32", "bfloat16", "auto"] = ""
    # Tokens that the KV cache of one engine holds. When they are used up, the youngest sequences wait and are
    # computed again later. 0: max_sequences x the longest context; on GPUs, or without max_context_tokens, at
    # most what is free for them, decided once by the machine that starts the run (docs/devices.md).
    #
    # Set a smaller number if engines run out of memory and most episodes are far shorter than the longest
    # context.
    kv_tokens: int = Field(default=0, ge=0)
    # Part of a GPU's memory that a run may take with kv_tokens = 0, by prediction.
    #
    # Lower it if engines run out of memory, or other programs use the GPU.
    memory_fraction: float = Field(default=0.9, gt=0, le=1)
    # Sequences that one engine generates at once.
    #
    # More raise throughput until memory or the processor is full.
    max_sequences: int = Field(default=64, ge=1)
    # Longest context of an episode, in tokens: prompt, answers and observations together. An episode that
    # reaches it ends as TRUNCATED. 0: no bound but the model's positions and the memory of the machine.
    #
    # Set it if longer episodes are of no use to you, or to repeat a run on machines with other memory.
    max_context_tokens: int = Field(default=0, ge=0)
    # Tokens of the longest context that some layout of the machine holds, where contexts end without
    # max_context_tokens. 0: by prediction, decided once by the machine that starts the run (docs/devices.md).
    #
    # Set it in a fleet, where the machine that prepares the run does not know the memory of the others.
    held_context_tokens: int = Field(default=0, ge=0)
    # Most tokens of one answer.
    #
    # Raise it if answers end before they are complete; lower it if the model talks on after its action.
    max_new_tokens: int = Field(default=16, ge=1)
    # Sources that engines draft the next tokens of an answer from: "task" (other episodes of the same task),
    # "environment" (recent turns of the same environment), "context" (the episode so far, which is always
    # looked through, too). Empty: nothing is drafted. Drafts change no token (docs/history.md).
    #
    # Set all three if answers repeat what was written before and engines have cores or memory bandwidth to
    # spare; with random answers they only cost the search for drafts.
    drafts: list[Literal["task", "environment", "context"]] = []
    # What happens to the KV cache of running sequences when new weights arrive.
    #
    # "keep" is faster; set "recompute" to make every token depend on the new weights alone.
    kv_on_update: Literal["keep", "recompute"] = "keep"
    # Episodes that one worker plays at once; a match of self-play is one. 0: as many as its engines hold
    # sequences, of which an episode takes one for each seat of the policy.
    #
    # Raise it if the environment is slow and engines wait for it.
    episodes: int = Field(default=0, ge=0)
    # Memory for finished trajectories that wait for the trainer; while it is full, workers pause. 0: what
    # staleness + 2 batches of the longest episodes need, at least 64 MiB. Without max_context_tokens it grows
    # with the episodes, to an eighth of the machine's memory at most.
    #
    # Set a smaller number if memory is short and most episodes are far shorter than the longest context.
    arena_bytes: int = Field(default=0, ge=0)
    # How many times a worker starts an engine that died before it gives up itself.
    #
    # 0 while you look for the cause of a crash; raise it for long runs whose engines die now and then.
    engine_restarts: int = Field(default=2, ge=0)
    # Keeps a process ready for each device that engines may get by a switch of parallelism, or by a move of
    # devices (stack.pool_devices): its imports are done, and it has no weights. "auto": where
    # scheduler.selector = "on", or switch.plan has switches of rollout. None with a single device.
    #
    # Set false if the host's memory is short, true if you switch by hand and a switch is to be quick.
    standby: Annotated[bool | Literal["auto"], Takes('true, false or "auto"')] = "auto"
    # Seconds that running episodes may continue after SIGTERM.
    #
    # Raise it to the length of an episode if workers are removed while the run trains: what is not finished
    # is played again elsewhere.
    drain_s: float = Field(default=5.0, ge=0)
    # Seconds that a worker then still serves trajectories that are not trained yet, while other workers play.
    # What is not trained by then is played again.
    #
    # Raise it above the duration of a step if workers are removed often and episodes are expensive.
    linger_s: float = Field(default=0.0, ge=0)
    # host:port at which the worker listens; port 0 takes any free one.
    #
    # Change it in a fleet, where other machines connect to the worker; off loopback it needs TLS and a token.
    bind: str = "127.0.0.1:0"
