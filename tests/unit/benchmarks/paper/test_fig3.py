"""Fig. 3's table as a profile, and the selector on it."""

from __future__ import annotations

import itertools

from benchmarks.paper import fig3


def test_every_cell_of_the_paper_is_predicted_again() -> None:
    made = fig3.measure()
    assert made["cells_reproduced"] == len(made["cells"]) == 30
    assert made["contexts"][0]["responses_16"] == "-32.2"
    assert made["contexts"][-1]["responses_128"] == "oom"


def test_a_cell_that_differs_from_the_papers_is_counted() -> None:
    cell = fig3.cell(fig3.profile(), 1024, 0)
    assert cell["as_in_paper"]
    assert not fig3.cell(fig3.ProfileTable(fig3.profile().rows[2:], "rollout"), 1024, 0)["as_in_paper"]


def test_tp4_alone_runs_out_of_memory_where_it_does_in_the_paper() -> None:
    table = fig3.profile()
    assert fig3.replayed(table, 128, "static:tp=4")["oom_steps"] == 1
    assert fig3.replayed(table, 64, "static:tp=4")["oom_steps"] == 0
    assert fig3.replayed(table, 128, "earl")["oom_steps"] == 0


def test_contexts_grow_from_1k_to_32k() -> None:
    lengths = [step.workload.mean_tokens for step in fig3.trace(8)]
    assert (lengths[0], lengths[-1]) == (1024, 32_768)
    assert all(before < after <= before * 1.1 for before, after in itertools.pairwise(lengths))
