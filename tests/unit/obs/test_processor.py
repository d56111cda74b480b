"""Checks which processors compute bfloat16, told by their instruction sets."""

from __future__ import annotations

import pytest

from earl.obs.processor import (
    bfloat16_instructions,
    flags,
    native_bfloat16,
    native_on_cuda,
    onednn_bfloat16,
    parse_flags,
    usable,
)

AVX2 = "fpu sse sse2 ssse3 sse4_1 sse4_2 fma f16c avx avx2"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni"


@pytest.mark.parametrize(
    ("flags", "instructions"),
    [
        ("", []),
        (AVX2, []),
        (f"{AVX2} avx_vnni avx_ne_convert", []),
        (AVX512, []),
        (f"{AVX512} avx512_fp16", []),
        (f"{AVX512} avx512_bf16", ["avx512_bf16"]),
        (f"{AVX512} avx512_bf16 amx_tile amx_bf16 amx_int8", ["amx_bf16", "avx512_bf16"]),
        (f"{AVX512} amx_tile amx_int8", []),
        ("fp asimd asimdhp sve", []),
        ("fp asimd asimdhp sve bf16 i8mm", ["bf16"]),
    ],
)
def test_the_flags_decide(flags: str, instructions: list[str]):
    assert bfloat16_instructions(flags.split()) == instructions
    assert native_bfloat16(flags.split()) == bool(instructions)


def test_flags_are_those_of_the_first_processor():
    x86 = "processor\t: 0\nmodel name\t: X\nflags\t\t: fpu avx2\nvmx flags\t: ept\n\nflags\t\t: other\n"
    assert parse_flags(x86) == {"fpu", "avx2"}
    assert parse_flags("processor\t: 0\nBogoMIPS\t: 50\nFeatures\t: fp bf16\n") == {"fp", "bf16"}
    assert parse_flags("processor : 0\nflags :\n") == parse_flags("") == frozenset()


@pytest.mark.parametrize(
    ("limit", "instructions"),
    [
        ("", ["amx_bf16", "avx512_bf16"]),
        ("ALL", ["amx_bf16", "avx512_bf16"]),
        ("AVX512_CORE_AMX", ["amx_bf16", "avx512_bf16"]),
        ("AVX512_CORE_BF16", ["avx512_bf16"]),
        ("avx512_core", []),
        ("AVX2", []),
    ],
)
def test_onednns_limit_counts_as_a_lesser_processor(limit: str, instructions: list[str]):
    listed = f"{AVX512} avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8".split()
    left = usable(listed, limit)
    assert bfloat16_instructions(left) == instructions
    assert set(AVX2.split()) <= left


@pytest.mark.parametrize(
    ("flags", "takes"),
    [("avx avx2", False), ("avx2 avx512f avx512bw avx512dq avx512vl", True), ("asimd bf16", True)],
)
def test_onednn_takes_bfloat16_where_it_need_not_be_fast(flags: str, takes: bool):
    assert onednn_bfloat16(flags.split()) is takes


def test_the_limit_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not native_bfloat16(flags()) or "bf16" in flags()


def test_a_gpu_computes_bfloat16_from_ampere_on():
    assert [native_on_cuda(one) for one in ((7, 0), (7, 5), (8, 0), (8, 9), (10, 0))] == [
        False, False, True, True, True,
    ]  # fmt: skip
