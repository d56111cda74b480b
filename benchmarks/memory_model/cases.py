"""The cases that are measured: a stage of a model in a parallelism, at a length and a concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.parallelism import STAGES, Parallelism

# Every other span of so many tokens of a sequence was sampled by the agent.
TURN_TOKENS = 32
SAMPLED = 0.5


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """A measurement. model: fields of ModelSpec. sections: run-file sections beside what is measured.

    shared_tokens: how many first tokens all sequences have in common; none of them is trained on.
    """

    stage: str
    parallelism: str
    context_tokens: int
    concurrency: int
    model: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shared_tokens: int = 0
    device: str = "cpu"

    @property
    def degrees(self) -> Parallelism:
        return Parallelism.parse(self.parallelism)

    @property
    def spec(self) -> ModelSpec:
        family = self.model["family"]
        return ModelSpec(
            max_positions=self.context_tokens,
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            **self.model,
        )

    @property
    def config(self) -> RunConfig:
        sections: dict[str, dict[str, Any]] = {name: {"device": self.device} for name in STAGES}
        for name, fields in self.sections.items():
            sections.setdefault(name, {}).update(fields)
        sections["rollout"].setdefault("max_context_tokens", self.context_tokens)
        return RunConfig.model_validate({"name": "m", "environment": {"name": "m"}, **sections})

    @property
    def trained_fraction(self) -> float:
        return SAMPLED * (1 - self.shared_tokens / self.context_tokens)

    @property
    def tiny(self) -> MemoryCase:
        """The same case with a model of a few kilobytes, so that only the process itself takes memory."""
        return replace(self, context_tokens=64, concurrency=self.degrees.dp, model=TINY, shared_tokens=0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def sizes(
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocab: int,
    *,
    tied: bool = True,
    family: str = "llama",
) -> dict[str, Any]:
    """Fields of ModelSpec, but what follows from the others."""
    return dict(locals())


TINY = sizes(32, 1, 4, 4, 8, 32, 64)
# A wide vocabulary; many layers; an untied output; ranks that share a key-value head.
WIDE = sizes(256, 4, 4, 4, 64, 1024, 8192)
DEEP = sizes(256, 16, 4, 2, 64, 768, 2048)
UNTIED = sizes(512, 6, 8, 4, 64, 1024, 4096, tied=False)
SHARING = sizes(512, 4, 8, 1, 64, 1024, 8192, tied=False)
# Other families: biases of queries, keys and values; norms of heads that are together wider than the stream.
BIASED = sizes(384, 8, 6, 2, 64, 1024, 4096, family="qwen2")
NORMED = sizes(320, 6, 4, 2, 128, 960, 6144, tied=False, family="qwen3")
# Used by the held-out cases alone.
OTHER = sizes(384, 10, 6, 2, 64, 1280, 6144)
OTHER_NORMED = sizes(448, 8, 8, 2, 80, 1536, 7168, tied=False, family="qwen3")
OTHER_BIASED = sizes(352, 12, 8, 4, 48, 832, 5120, family="qwen2")


def trainer(
    model: Mapping[str, Any],
    parallelism: str,
    tokens: int,
    sequences: int,
    fields: Mapping[str, Any] | None = None,
    *,
    shared_tokens: int = 0,
) -> MemoryCase:
    section = {"microbatch_tokens": 4096, "lr": 1e-5, **(fields or {})}
    return MemoryCase("trainer", parallelism, tokens, sequences, model, {"trainer": section}, shared_tokens)


def rollout(
    model: Mapping[str, Any], parallelism: str, tokens: int, sequences: int, **fields: Any
) -> MemoryCase:
    tp = Parallelism.parse(parallelism).tp
    made = {"rollout": {"max_sequences": sequences, "tp": tp, **fields}}
    return MemoryCase("rollout", parallelism, tokens, sequences, model, made)


def reference(
    model: Mapping[str, Any], parallelism: str, tokens: int, sequences: int, **fields: Any
) -> MemoryCase:
    return MemoryCase("reference", parallelism, tokens, sequences, model, {"trainer": fields})


AGAIN = {"activation_checkpointing": True}
NARROW = {"dtype": "bfloat16"}
# The model's constants were fitted on these: their errors say how well it describes, not how it predicts.
CASES = {
    "trainer": trainer(WIDE, "dp=1", 1024, 1),
    "trainer checkpointing": trainer(WIDE, "dp=1", 1024, 1, AGAIN),
    "trainer bfloat16": trainer(WIDE, "dp=1", 1024, 1, NARROW),
    "trainer short": trainer(WIDE, "dp=1", 256, 8),
    "trainer shared": trainer(WIDE, "dp=1", 512, 4, shared_tokens=256),
    "trainer micro-batches": trainer(WIDE, "dp=1", 512, 8, {"microbatch_tokens": 1024}),
    "trainer adapters": trainer(WIDE, "dp=1", 1024, 1, {"lora_rank": 8}),
    "trainer untied": trainer(UNTIED, "dp=1", 1024, 1),
    "trainer untied checkpointing": trainer(UNTIED, "dp=1", 1024, 1, AGAIN),
    "trainer deep": trainer(DEEP, "dp=1", 512, 1),
    "trainer dp2": trainer(WIDE, "dp=2", 1024, 2),
    "trainer dp2 checkpointing": trainer(WIDE, "dp=2", 1024, 2, AGAIN),
    "trainer deep dp2": trainer(DEEP, "dp=2", 512, 2),
    "trainer deep dp2 checkpointing": trainer(DEEP, "dp=2", 512, 2, AGAIN),
    "trainer deep dp2 bfloat16": trainer(DEEP, "dp=2", 512, 2, NARROW),
    "trainer tp2": trainer(WIDE, "tp=2", 1024, 1),
    "trainer deep tp2 checkpointing": trainer(DEEP, "tp=2", 512, 1, AGAIN),
    "trainer cp2": trainer(WIDE, "cp=2", 2048, 1),
    "trainer deep cp2 checkpointing": trainer(DEEP, "cp=2", 1024, 1, AGAIN),
    "reference": reference(UNTIED, "dp=1", 2048, 2),
    "reference tp2": reference(UNTIED, "tp=2", 2048, 4),
    "reference tp2 bfloat16": reference(UNTIED, "tp=2", 2048, 4, **NARROW),
    "rollout": rollout(WIDE, "tp=1", 512, 16),
    "rollout long": rollout(WIDE, "tp=1", 2048, 4),
    "rollout short": rollout(WIDE, "tp=1", 128, 64),
    "rollout untied": rollout(UNTIED, "tp=1", 512, 16),
    "rollout tp2": rollout(WIDE, "tp=2", 512, 16),
    "rollout tp2 sharing": rollout(SHARING, "tp=2", 512, 16),
    "trainer normed": trainer(NORMED, "dp=1", 768, 2),
    "trainer biased checkpointing bfloat16": trainer(BIASED, "dp=1", 1024, 2, {**AGAIN, **NARROW}),
    "trainer biased adapters checkpointing": trainer(BIASED, "dp=1", 1024, 2, {**AGAIN, "lora_rank": 8}),
    "trainer biased dp2 adapters": trainer(BIASED, "dp=2", 1024, 2, {"lora_rank": 8}),
    "trainer normed cp2 bfloat16": trainer(NORMED, "cp=2", 2048, 1, NARROW),
    "trainer biased tp2": trainer(BIASED, "tp=2", 768, 2),
    "trainer long checkpointing": trainer(WIDE, "dp=1", 1024, 2, AGAIN),
    "trainer deep long checkpointing": trainer(DEEP, "dp=1", 1024, 2, AGAIN),
    "trainer biased long checkpointing": trainer(BIASED, "dp=1", 2048, 1, AGAIN),
    "trainer biased two checkpointing": trainer(BIASED, "dp=1", 1024, 2, AGAIN),
    "trainer biased adapters": trainer(BIASED, "dp=1", 1024, 2, {"lora_rank": 8}),
    "trainer biased one adapters checkpointing": trainer(BIASED, "dp=1", 1024, 1, {**AGAIN, "lora_rank": 8}),
    "reference normed": reference(NORMED, "dp=1", 1536, 3),
    "reference biased bfloat16": reference(BIASED, "dp=1", 1536, 3, **NARROW),
    "rollout normed": rollout(NORMED, "tp=1", 512, 16),
    "rollout biased bfloat16": rollout(BIASED, "tp=1", 512, 16, dtype="bfloat16"),
    "rollout bounded": rollout(WIDE, "tp=1", 512, 16, kv_tokens=4096),
    "rollout biased tp2": rollout(BIASED, "tp=2", 384, 24),
}
# Another shape, other lengths and other combinations, chosen before any of them was measured. Nothing may be
# fitted on them: a constant that is changed because of one needs other held-out cases.
HELD_OUT = {
    "held-out trainer": trainer(OTHER, "dp=1", 768, 2),
    "held-out trainer checkpointing bfloat16": trainer(OTHER, "dp=1", 1536, 1, {**AGAIN, **NARROW}),
    "held-out trainer shared": trainer(OTHER, "dp=1", 640, 4, shared_tokens=320),
    "held-out trainer dp2 adapters": trainer(OTHER, "dp=2", 768, 2, {"lora_rank": 8}),
    "held-out trainer tp2 bfloat16": trainer(OTHER, "tp=2", 768, 2, NARROW),
    "held-out trainer cp2": trainer(OTHER, "cp=2", 1536, 1),
    "held-out reference": reference(OTHER, "dp=1", 1536, 3),
    "held-out reference tp2": reference(OTHER, "tp=2", 1536, 3),
    "held-out rollout": rollout(OTHER, "tp=1", 768, 12),
    "held-out rollout tp2": rollout(OTHER, "tp=2", 384, 24),
    "held-out trainer normed": trainer(OTHER_NORMED, "dp=1", 1280, 1),
    "held-out trainer biased micro-batches": trainer(
        OTHER_BIASED, "dp=1", 640, 6, {"microbatch_tokens": 2048}
    ),
    "held-out trainer normed dp2 checkpointing bfloat16": trainer(
        OTHER_NORMED, "dp=2", 896, 2, {**AGAIN, **NARROW}
    ),
    "held-out trainer biased tp2 adapters": trainer(OTHER_BIASED, "tp=2", 896, 2, {"lora_rank": 16}),
    "held-out trainer normed cp2 checkpointing": trainer(OTHER_NORMED, "cp=2", 1792, 1, AGAIN),
    "held-out reference normed bfloat16": reference(OTHER_NORMED, "dp=1", 1280, 4, **NARROW),
    "held-out reference biased tp2": reference(OTHER_BIASED, "tp=2", 1792, 3),
    "held-out rollout normed bounded": rollout(OTHER_NORMED, "tp=1", 640, 12, kv_tokens=3840),
    "held-out rollout biased tp2": rollout(OTHER_BIASED, "tp=2", 256, 32),
    "held-out rollout normed bfloat16": rollout(OTHER_NORMED, "tp=1", 896, 8, dtype="bfloat16"),
}
