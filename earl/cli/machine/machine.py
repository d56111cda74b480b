"""Properties of this machine and of a run file's servers, as facts and as findings with remedies.

`facts` looks, `findings` judges: pure, so that every machine can be tried in a test.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from earl.cli.machine.findings import Finding
from earl.config.auto_dtype import described, emulated_keys
from earl.config.frozen_stage import FrozenModelConfig
from earl.config.rollout import RolloutConfig
from earl.config.run import RunConfig
from earl.config.trainer import TrainerConfig
from earl.errors import EarlError
from earl.obs.limits import available_bytes, cpu_quota, host_bytes
from earl.obs.processor import BFLOAT16_INSTRUCTIONS, bfloat16_instructions
from earl.stack.auto_dtype import COST, Devices, gpu_may_be_here
from earl.stack.ports import binds, resolve_all
from earl.stack.thread_counts import with_threads

# Each process of a run holds hundreds of files, sockets and libraries.
LEAST_FILES = 1024
# In addition to the model: a Python with torch, for every process that computes.
LEAST_BYTES = 2 << 30
MOST_SKEW_S = 1.0
CLOCK_S = 0.02
CLOCK_TRIES = 5
# A version of the weights is published into one of two slots.
SLOTS = 2
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """cores: that this process may use; quota: of them by its cgroup, 0 for no bound. Sizes in bytes.

    clock_error: by how much the monotonic clock and the wall clock disagreed over a moment, as a fraction.
    """

    cores: int
    quota: float
    memory_bytes: int
    available_bytes: int
    open_files: int
    clock_error: float


def machine() -> Machine:
    """Measures this machine's properties."""
    return Machine(
        len(os.sched_getaffinity(0)),
        cpu_quota(),
        host_bytes(),
        available_bytes(),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        min(clock_error() for _ in range(CLOCK_TRIES)),
    )


def clock_error() -> float:
    """The part of CLOCK_S, 0..1, by which the wall clock and the monotonic one passed differently.

    Too large if the process was kept waiting between two readings.
    """
    monotonic, wall = time.monotonic(), time.time()
    time.sleep(CLOCK_S)
    passed_s = time.monotonic() - monotonic
    return abs(time.time() - wall - passed_s) / passed_s


def of_machine(here: Machine) -> Iterator[Finding]:
    """Cores, memory, open files and clock, which every run needs."""
    usable = min(here.cores, here.quota) if here.quota else here.cores
    text = f"{here.cores} usable" + (f", bounded to {here.quota:g} by the cgroup" if here.quota else "")
    few = "give it two or more: rollout and trainer take turns on one" if usable < 2 else ""
    yield Finding("cores", usable > 0, True, text, few, {"cores": here.cores, "quota": here.quota})
    text = f"{here.available_bytes / GIB:.1f} of {here.memory_bytes / GIB:.1f} GiB are free"
    little = here.available_bytes < LEAST_BYTES
    remedy = f"free some: a small run takes {LEAST_BYTES / GIB:g} GiB" if little else ""
    facts = {"memory_bytes": here.memory_bytes, "available_bytes": here.available_bytes}
    yield Finding("memory", not little, True, text, remedy, facts)
    enough = here.open_files == resource.RLIM_INFINITY or here.open_files >= LEAST_FILES
    remedy = "" if enough else f"raise it: ulimit -n {LEAST_FILES}"
    yield Finding(
        "open files", enough, True, f"{here.open_files} at once", remedy, {"nofile": here.open_files}
    )
    steady = here.clock_error < 0.5
    remedy = "" if steady else "let NTP slew the clock instead of setting it"
    text = f"the wall clock runs with the monotonic one to {here.clock_error:.1%}"
    yield Finding("clock", steady, True, text, remedy, {"clock_error": here.clock_error})


def of_bfloat16(flags: Collection[str], config: RunConfig | None) -> Finding:
    """Checks if the processor computes bfloat16, and if the run, its dtypes resolved, would emulate it.

    flags: the processor's instruction sets.
    """
    computes = bfloat16_instructions(flags)
    facts = {"instructions": computes}
    if computes:
        return Finding("bfloat16", True, False, f"computed by {' and '.join(computes)}", "", facts)
    text = f"emulated: the processor has none of {', '.join(BFLOAT16_INSTRUCTIONS)}"
    slow = emulated_keys(config, Devices(flags).may_be_native) if config is not None else []
    if config is None or not slow:
        return Finding("bfloat16", False, False, text, "", facts)
    text += f". With {described(config, slow)} {COST}"
    return Finding("bfloat16", False, False, text, f'write {" and ".join(slow)} = "auto" or "float32"', facts)


def of_threads(here: Machine, config: RunConfig) -> Finding:
    """Compares the torch threads of a run's engines and ranks that compute on the processor with its cores.

    Threads of one process spin while they wait for each other, which takes cores from the others. Those that
    the run file leaves open are as a launch here decides them.
    """
    gpu = gpu_may_be_here()
    cores = min(here.cores, here.quota or here.cores)
    config = with_threads(config, int(gpu), cores)
    rollout, trainer = config.rollout, config.trainer
    stages: list[tuple[str, RolloutConfig | TrainerConfig | FrozenModelConfig, int]] = [
        ("rollout", rollout, rollout.workers * rollout.engines * rollout.tp),
        ("trainer", trainer, trainer.ranks),
    ]
    stages += [(role, stage, stage.dp * stage.tp) for role, stage in config.frozen_models.items()]
    on_cpu = [
        stage for stage in stages if stage[1].device == "cpu" or (stage[1].device == "auto" and not gpu)
    ]
    if not on_cpu:
        return Finding("threads", True, False, "torch computes on GPUs")
    threads = {name: section.threads * processes for name, section, processes in on_cpu}
    parts = ", ".join(f"{name} {count}" for name, count in threads.items())
    text = f"torch computes with {sum(threads.values())} on {cores:g} cores ({parts})"
    keys = [f"{name}.threads" for name, section, _ in on_cpu if section.threads > 1]
    if sum(threads.values()) <= cores or not keys:
        return Finding("threads", True, False, text, "", threads)
    text += ": those that wait for each other take cores from the rest"
    return Finding("threads", False, False, text, f"lower {' or '.join(keys)}", threads)


def of_ports(config: RunConfig) -> Finding:
    """Returns whether all that the run file binds on this machine is free now."""
    addresses = binds(config)
    try:
        resolve_all(config)
    except EarlError as error:
        return Finding("ports", False, True, error.message, error.remedy, addresses)
    chosen = sum(bind.endswith(":0") for bind in addresses.values())
    text = f"{len(addresses) - chosen} are configured and free, {chosen} are chosen at the start"
    return Finding("ports", True, True, text, "", addresses)


def of_arenas(
    config: RunConfig, memory: Mapping[str, Any], rollout: Mapping[str, Any], model: Mapping[str, Any]
) -> Finding:
    """Checks if arena_dir has space for the arenas. rollout, model: what the probes found about one worker,
    and about the model."""
    for probed in (rollout, model):
        if (error := probed["error"]) is not None:
            return Finding("arenas", False, True, error["message"], error["remedy"], probed["facts"])
    need = config.rollout.workers * int(rollout["facts"]["arena_bytes"])
    # Versions that a trainer keeps for its tickets lie in an arena of their own.
    versions = SLOTS + (config.kept.most_needed if config.kept is not None else 0)
    need += versions * int(model["facts"].get("bytes", 0))
    free = int(memory.get("free_bytes", 0))
    text = (
        f"about {need / GIB:.2f} GiB are needed in {config.data_plane.arena_dir}, {free / GIB:.2f} are free"
    )
    fits = need <= free
    remedy = (
        ""
        if fits
        else (
            "make the tmpfs larger (mount -o remount,size=…; docker run --shm-size), name another one in "
            "data_plane.arena_dir, or set rollout.arena_bytes"
        )
    )
    return Finding("arenas", fits, True, text, remedy, {"need_bytes": need, "free_bytes": free})


def of_model(config: RunConfig, probed: Mapping[str, Any]) -> Finding:
    facts, error = probed["facts"], probed["error"]
    if error is not None:
        return Finding("model", False, True, error["message"], error["remedy"], facts)
    if not config.model.path:
        text = f"made at the start, with random weights and a vocabulary of {facts['words']} words"
    elif "package" in facts:
        text = f"out of package {facts['package']} {facts['version']}, converted once"
    else:
        text = f"{facts['family']} of {facts['parameters'] / 1e6:,.0f} M parameters in {facts['path']}"
        text += ", with its chat template" if facts["chat_template"] else ""
    return Finding("model", True, True, text, "", facts)


def of_redis(probed: Mapping[str, Any]) -> Iterator[Finding]:
    """About a server that the run file or EARL_REDIS_URL names, or of the embedded one where none does."""
    facts, error = probed["facts"], probed["error"]
    if error is not None:
        yield Finding("redis", False, True, error["message"], error["remedy"], facts)
        return
    if facts["embedded"]:
        yield Finding("redis", True, True, f"the embedded Valkey {facts['version']} starts", "", facts)
        return
    text = f"{facts['server']} {facts['version']} at {facts['url']}"
    if facts["evicts"]:
        remedy = "set maxmemory-policy noeviction: the ledger must not be evicted"
        yield Finding("redis", False, True, f"{text} evicts ({facts['maxmemory_policy']})", remedy, facts)
        return
    kept = "persists what is written" if facts["appendonly"] else "loses everything when it ends"
    remedy = (
        "" if facts["appendonly"] else "set appendonly yes and appendfsync always, to resume after it ended"
    )
    yield Finding("redis", True, True, f"{text}, {kept}", remedy, facts)
    near = abs(facts["skew_s"]) <= MOST_SKEW_S
    remedy = "" if near else "keep both clocks by NTP: times in logs and traces are compared"
    yield Finding(
        "redis clock", near, False, f"{facts['skew_s']:+.3f} s against this machine's", remedy, facts
    )


def of_gateway(address: str, name: str, listed: Mapping[str, int] | None, error: EarlError | None) -> Finding:
    """The finding about a gateway.

    listed: hosts by environment. name: the environment of the run file, "" for any.
    """
    if error is not None or listed is None:
        text = error.message if error is not None else "no answer"
        remedy = error.remedy if error is not None else ""
        return Finding("environments", False, True, text, remedy or f"start a gateway at {address}")
    facts = {"gateway": address, "hosts": dict(listed)}
    if not listed or (name and name not in listed):
        text = f"no host serves {name or 'anything'} at {address}"
        remedy = f"start one: earl env serve MODULE:CLASS --gateway {address}"
        return Finding("environments", False, True, text, remedy, facts)
    hosts = listed[name] if name else sum(listed.values())
    return Finding(
        "environments", True, True, f"{hosts} hosts serve {name or 'environments'} at {address}", "", facts
    )
