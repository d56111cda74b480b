"""The limitations of the paper's system, each lifted here or not, with the tests that show it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.children import late, process_error
from benchmarks.paper.figure import PaperFigure
from benchmarks.paper.settings import PaperSettings
from benchmarks.record.checkout import ROOT
from benchmarks.record.progress import phase
from earl.errors import ConfigError

LONGEST_S = 2400.0
# Exit codes of pytest: all passed, some failed.
RAN = (0, 1)
Lifted = Literal["yes", "partly", "no"]


@dataclass(frozen=True, slots=True)
class Limitation:
    """A limitation that the paper states, or that follows from what it states.

    here: what this implementation does, and where it ends. tests: those that show it, as pytest names them.
    """

    limitation: str
    lifted: Lifted
    here: str
    tests: tuple[str, ...]


SELECTOR = "tests/unit/scheduler/selector/test_selector.py::"
SHARED = "tests/unit/scheduler/selector/test_shared_devices.py::"
LIMITATIONS = (
    Limitation(
        "only the rollout stage changes its parallelism",
        "yes",
        "The trainer's and the reference stage's parallelism change during a run, too.",
        (
            "tests/integration/test_trainer_switch.py::"
            "test_bits_stay_training_goes_on_and_what_is_wrong_is_rolled_back",
            "tests/integration/test_reference_parallelism.py::"
            "test_log_probs_are_the_decoders_in_every_layout",
        ),
    ),
    Limitation(
        "only the reference stage's log-probs are dispatched directly",
        "yes",
        "Sampled columns and versions of the weights are read directly, too.",
        (
            "tests/contract/test_transport_sequences.py::"
            "test_columns_of_several_owners_pack_in_the_order_that_was_asked_for",
            "tests/integration/test_dispatch_planes.py::test_three_owners_reshard_to_two_readers",
            "tests/integration/test_weights_mesh.py::test_every_rank_gets_its_slices_bit_for_bit",
        ),
    ),
    Limitation(
        "rewards and returns are aggregated in one place",
        "partly",
        "The scheduler still computes advantages, from one number for each trajectory: no tensor passes it.",
        (
            "tests/unit/scheduler/state/test_values.py::"
            "test_a_plan_gives_each_sequence_to_one_rank_with_its_groups_advantage",
            "tests/integration/test_dispatch_planes.py::"
            "test_control_plane_bytes_do_not_grow_with_the_sequence",
        ),
    ),
    Limitation(
        "stages take turns; no asynchrony with a replay buffer",
        "partly",
        "Rollout runs ahead by a bounded number of versions. A run that asks for it trains on groups again, "
        "bounded in age and number; it has not been measured at scale.",
        (
            "tests/unit/scheduler/state/test_values.py::test_no_deadline_is_ever_missed",
            "tests/unit/scheduler/ledger/test_ledger_model.py::"
            "test_long_walks_in_which_groups_are_trained_again",
        ),
    ),
    Limitation(
        "the stages' parallelisms are not chosen together",
        "yes",
        "In a run with one pool of devices and a profile, the division between stages and the layout of each "
        "stage are one decision. earl replay decides for stages together that take turns on the same "
        "devices.",
        (
            "tests/unit/scheduler/parallelism/test_split_loop.py::"
            "test_devices_follow_the_work_and_the_decision_is_written_down",
            "tests/unit/scheduler/parallelism/test_split_loop.py::"
            "test_devices_and_layouts_are_decided_together_and_written_down",
            "tests/unit/scheduler/parallelism/test_device_moves.py::"
            "test_a_roll_back_brings_devices_and_replicas_back",
            f"{SHARED}test_the_policy_keeps_its_promises_for_all_stages_at_once",
        ),
    ),
    Limitation(
        "the best layout depends on the context length alone",
        "yes",
        "A profile has throughput by layout, context and load, and the selector uses all of them.",
        (
            f"{SELECTOR}test_a_load_that_never_changed_grows_alone",
            f"{SELECTOR}test_what_does_not_fit_is_not_chosen_if_something_does",
        ),
    ),
    Limitation(
        "a switch has no stated cost, and there is no hysteresis",
        "yes",
        "A switch waits until staying has lost what it costs, so noise and what comes and goes pay for none.",
        (
            f"{SELECTOR}test_a_switch_waits_until_it_would_have_paid",
            f"{SELECTOR}test_noise_pays_for_nothing",
            f"{SELECTOR}test_around_a_boundary_it_switches_half_as_often_as_the_paper_at_most",
        ),
    ),
    Limitation(
        "there is no rule for memory",
        "yes",
        "Memory is predicted; what would not fit is not chosen, what is about to run out is left at once. "
        "This holds while lengths grow by no more than a quarter in a step.",
        (
            f"{SELECTOR}test_no_step_runs_out_of_memory_while_growth_is_bounded",
            f"{SELECTOR}test_what_is_about_to_run_out_of_memory_is_left_at_once",
        ),
    ),
    Limitation(
        "data is dispatched over TCP; RDMA was not measured",
        "no",
        "NIXL can use RDMA and refuses a lesser wire where RDMA is required. It never ran over RDMA here.",
        ("tests/unit/dispatch/transport/nixl/test_spans.py::test_rdma_is_where_a_port_is_up",),
    ),
)
GOALS = {"tests_not_passed_max": 0}
COMPARES = (
    "What the paper states as limits or future work of its system, or leaves open. lifted: yes, partly or "
    "no, as the authors of this implementation judge it; here: what it does instead. tests: run for this "
    "result; passed is false where one failed, was skipped or is not there."
)


def figure(settings: PaperSettings) -> PaperFigure:
    return PaperFigure("limitations", {}, measure, GOALS)


def measure() -> dict[str, Any]:
    """Runs the tests. Raises ConfigError outside a checkout, ProcessFailed, DeadlineExceeded."""
    if not (ROOT / "tests").is_dir():
        raise ConfigError("the tests of EARL are not installed", "run it in a checkout")
    named = list(dict.fromkeys(test for each in LIMITATIONS for test in each.tests))
    phase(f"{len(named)} tests of the limitations")
    passed = passing(named)
    return {
        "compares": COMPARES,
        "lifted": sum(each.lifted == "yes" for each in LIMITATIONS),
        "partly": sum(each.lifted == "partly" for each in LIMITATIONS),
        "not_lifted": sum(each.lifted == "no" for each in LIMITATIONS),
        "tests_not_passed_max": len(named) - len(passed),
        "limitations": [
            {
                "limitation": each.limitation,
                "lifted": each.lifted,
                "here": each.here,
                "tests": list(each.tests),
                "passed": set(each.tests) <= passed,
            }
            for each in LIMITATIONS
        ],
    }


def passing(named: list[str], root: Path = ROOT) -> set[str]:
    """Runs these tests; the names of those of which every parameter passed."""
    with tempfile.TemporaryDirectory(prefix="earl-bench-") as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *named]
        try:
            done = subprocess.run(
                command, cwd=root, capture_output=True, text=True, check=False, timeout=LONGEST_S
            )
        except subprocess.TimeoutExpired as error:
            raise late("the tests of the limitations", LONGEST_S) from error
        if done.returncode not in RAN or not report.exists():
            raise process_error("pytest", done.returncode, done.stdout + done.stderr)
        cases = list(ElementTree.parse(report).iter("testcase"))
    return {test for test in named if every_one_passed(test, cases)}


def every_one_passed(test: str, cases: list[ElementTree.Element]) -> bool:
    """Returns whether a test is in the report, and all of its parameters passed."""
    path, _, name = test.partition("::")
    classname = path.removesuffix(".py").replace("/", ".")
    its = [
        case
        for case in cases
        if case.get("classname") == classname and str(case.get("name")).partition("[")[0] == name
    ]
    ends = [case.find(kind) for case in its for kind in ("failure", "error", "skipped")]
    return bool(its) and all(end is None for end in ends)
