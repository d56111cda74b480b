"""The memory model against peaks that a card had (benchmarks/results), which it was fitted on."""

import json
from dataclasses import replace

import pytest

from benchmarks.gpu.peaks import ENGINE_CASES, RANK_CASES, TOLERANCE
from benchmarks.memory_model.command import predict, private_bytes
from benchmarks.record.checkout import ROOT

# On an H200: trainer and reference in segments that grow, and engines.
RESULT = ROOT / "benchmarks" / "results" / "gpu-20261126-201609.json"
MEASURED_MIB = {
    case["case"]: case["measured_mib"]
    for check in json.loads(RESULT.read_text())["checks"]
    for case in check["figures"].get("cases", ())
}


@pytest.mark.parametrize("name", [*RANK_CASES, *ENGINE_CASES])
def test_a_peak_is_within_a_tenth_of_the_card_s(name):
    case = (RANK_CASES | ENGINE_CASES)[name]
    here = replace(case, device="cuda")
    predicted_mib = private_bytes(here, predict(here)) / (1 << 20)
    assert predicted_mib == pytest.approx(MEASURED_MIB[name], rel=TOLERANCE["error"])
