"""Options that several benchmarks have."""

import pytest
import typer

from benchmarks.options import computed_dtype
from earl.obs import processor


def test_auto_is_bfloat16_only_where_the_processor_has_instructions_for_it(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", cpuinfo)
    cpuinfo.write_text("flags\t: fpu avx2 avx512f\n")
    assert computed_dtype("auto") == "float32"
    cpuinfo.write_text("flags\t: fpu avx2 avx512f avx512_bf16\n")
    assert computed_dtype("auto") == "bfloat16"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_named_dtype_is_computed_in_as_it_is(dtype: str):
    assert computed_dtype(dtype) == dtype


def test_another_dtype_is_refused():
    with pytest.raises(typer.BadParameter, match="float16 is none of auto, bfloat16 and float32"):
        computed_dtype("float16")


def test_auto_is_bfloat16_on_cuda_whatever_the_processor_is(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", cpuinfo)
    cpuinfo.write_text("flags\t: fpu avx2\n")
    assert computed_dtype("auto", "cuda") == "bfloat16"
