"""Every check, in the order in which rows are written."""

from __future__ import annotations

from benchmarks.gpu.check import GpuCheck

CHECKS: tuple[GpuCheck, ...] = (
    GpuCheck(
        "copies",
        "facts:copies",
        "copies between host and card, pageable and pinned; a version cast on the host and on the card",
        60.0,
        needs_card="it copies between host and card",
        timed=True,
    ),
    GpuCheck(
        "attention-backends",
        "facts:attention_backends",
        "which attention kernels take causal, masked and single queries with grouped heads",
        60.0,
        needs_card="kernels for processors are others",
        timed=True,
    ),
    GpuCheck(
        "arena", "arenas:arena", "an arena is created, and another process reads its bytes", 60.0, timed=True
    ),
    GpuCheck(
        "arena-from-card",
        "arenas:arena_from_card",
        "an arena that CUDA has pinned takes a card's bytes, and another process reads the same",
        60.0,
        needs_card="it copies out of one into an arena",
        timed=True,
    ),
    GpuCheck(
        "model",
        "model:model",
        "log-probs and gradients of every family equal the processor's float32 and transformers'",
        120.0,
    ),
    GpuCheck(
        "trainer-numbers",
        "training:numbers",
        "steps on the device update a model as the processor does, in float32 and bfloat16",
        120.0,
    ),
    GpuCheck(
        "out-of-memory",
        "training:out_of_memory",
        "a step that does not fit is a known error, and the process trains the next one",
        120.0,
    ),
    GpuCheck(
        "memory-trainer",
        "peaks:rank_peaks",
        "peaks of trainer and reference are those that are predicted",
        180.0,
        needs_card="a processor's peaks are those of earl bench memory-model",
    ),
    GpuCheck(
        "trainer-ranks",
        "several:parallel_trainer",
        "dp 2, tp 2 and cp 2 train as one rank does",
        150.0,
        devices=2,
    ),
    GpuCheck(
        "trainer-change",
        "several:changed_trainer",
        "two ranks change between dp, tp and cp, and compute the same log-probs",
        150.0,
        devices=2,
    ),
    GpuCheck(
        "demo",
        "runs:demo",
        "the demo learns with two engines, one of which is killed; its ledger is exact",
        300.0,
    ),
    GpuCheck("engine-contract", "engines:contract", "the engine contract: sampling, sessions, queue", 240.0),
    GpuCheck(
        "engine-contract-life", "engines:contract_life", "the engine contract: weights, aborts, death", 240.0
    ),
    GpuCheck(
        "engine-contract-memory", "engines:contract_memory", "the engine contract: KV, dtypes, bits", 240.0
    ),
    GpuCheck(
        "engine-contract-drafts",
        "engines:contract_drafts",
        "the engine contract: the same tokens with drafts and without",
        240.0,
    ),
    GpuCheck(
        "engine-contract-handover",
        "engines:contract_handover",
        "the engine contract: KV moves between engines of unlike tp",
        240.0,
        devices=2,
    ),
    GpuCheck(
        "engine-speed",
        "engines:engine_speed",
        "tokens a second at 1, 8, 32 and 128 sequences beside transformers",
        150.0,
        timed=True,
    ),
    GpuCheck(
        "publish",
        "publishing:publish",
        "two engines compute with exactly the weights that a trainer has published",
        180.0,
        timed=True,
    ),
    GpuCheck(
        "handover",
        "switching:handover",
        "KV of eight sessions moves between engines, which continue as if nothing had been",
        120.0,
        timed=True,
    ),
    GpuCheck(
        "switch-warm",
        "switching:warm_switch",
        "other engines take over beside the old ones: no sequence is lost or changed",
        180.0,
        timed=True,
    ),
    GpuCheck(
        "switch-cold",
        "switching:cold_switch",
        "other engines take over after the old ones ended: no sequence is lost or changed",
        180.0,
        timed=True,
    ),
    GpuCheck(
        "switch-tp",
        "switching:tp_switch",
        "engines of tp 1 become one of tp 2 and two again: no sequence is lost or changed",
        180.0,
        devices=2,
        timed=True,
    ),
    GpuCheck(
        "collectives",
        "several:collectives",
        "sums, parts of sums and exchanges between cards over NCCL, and their GB/s",
        120.0,
        needs_card="processors have no NCCL",
        devices=2,
        timed=True,
    ),
    GpuCheck(
        "trainer-speed",
        "training:speed",
        "tokens a second of a step, with and without recomputing activations",
        150.0,
        timed=True,
    ),
    GpuCheck(
        "memory-engine",
        "peaks:engine_peaks",
        "what engines take of a card is what is predicted",
        150.0,
        needs_card="a processor's peaks are those of earl bench memory-model",
        timed=True,
    ),
    GpuCheck(
        "profile",
        "runs:profile",
        "earl profile measures engines and trainer at every point of a grid",
        180.0,
        timed=True,
    ),
)
