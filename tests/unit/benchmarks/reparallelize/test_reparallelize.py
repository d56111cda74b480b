"""Checks what `earl bench reparallelize` says of sequences that were switched and sequences that were not."""

from dataclasses import replace

import pytest

from benchmarks.reparallelize import trainer
from benchmarks.reparallelize.rollout import Sequence, SharedDevice, SwitchWork, figures
from earl.errors import IllegalParallelism
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchOutcome
from services.rollout.engines.contract.engine import EngineSpec

WORK = SwitchWork(2, 3, 100, 10, (1, 2))
SPEC = ModelSpec("llama", 32, 1, 4, 2, 8, 64, 61)


def sequence(ids, logprobs=None, stalls=(), lost=""):
    return Sequence(0, [1, 2, 3], list(ids), list(logprobs or [-1.0] * len(ids)), list(stalls), lost)


def found(alone, switched, reports=(), decode_ms=()):
    return figures(WORK, [alone, sequence([1])], [switched, sequence([1])], list(reports), list(decode_ms))


def test_equal_tokens_are_exact_and_log_probs_may_differ():
    one = found(sequence([4, 5]), sequence([4, 5], [-1.0, -1.25]))
    assert one["token_exact"] and one["ties"] == 0 and one["max_logprob_diff"] == 0.25


@pytest.mark.parametrize(("logprob", "tie"), [(-1.00005, True), (-1.001, False)])
def test_another_token_is_a_tie_only_if_both_were_as_likely(logprob, tie):
    one = found(sequence([4, 5, 6]), sequence([4, 9, 9], [-1.0, logprob, -7.0]))
    assert one["token_exact"] is tie and one["ties"] == int(tie)
    assert one["max_logprob_diff"] == 0.0


def test_a_sequence_that_ended_early_is_not_exact():
    assert not found(sequence([4, 5]), sequence([4]))["token_exact"]
    assert found(sequence([4]), sequence([4], lost="engine gone"))["lost_sequences"] == 1


def test_stalls_are_of_all_sequences_and_switches():
    stalls = [0.001 * n for n in range(1, 101)]
    report = SwitchOutcome(epoch=1, parallelism=Parallelism(1, 2), rolled_back=True)
    one = found(sequence([4]), sequence([4], stalls=stalls), [report])
    assert (one["stalls"], one["live_ms_p50"], one["live_ms_p99"]) == (100, 50.5, 99.0)
    assert one["rolled_back"] == 1 and one["switches"][0]["parallelism"] == "tp2"


@pytest.mark.parametrize(
    ("longest_ms", "count", "met"), [(260.0, 100, True), (260.5, 100, False), (1.0, 99, None)]
)
def test_a_stall_may_last_two_decode_steps_of_its_batch_and_60_ms(longest_ms, count, met):
    stalls = [0.001] * (count - 2) + [longest_ms / 1e3] * 2
    one = found(sequence([4]), sequence([4], stalls=stalls), decode_ms=[250.0, 100.0, 90.0])
    assert (one["decode_ms"], one["live_goal_ms"], one["live_goal_met"]) == (100.0, 260.0, met)
    assert one["decode_ms_each"] == [250.0, 100.0, 90.0]
    assert found(sequence([4]), sequence([4], stalls=stalls))["live_goal_met"] is None


def test_the_seconds_in_which_engines_compete_count_for_each_of_the_old_ones():
    reports = [
        SwitchOutcome(epoch=1, parallelism=Parallelism(1, 2), competing_s=3.0),
        SwitchOutcome(epoch=2, parallelism=Parallelism(2, 1), competing_s=2.0),
    ]
    work = replace(WORK, tp_values=(1, 2, 1))
    pairs = [sequence([4])], [sequence([4])]
    assert figures(work, *pairs, reports, [])["switch_cost_engine_s"] == 2 * 3.0 + 2.0


def test_a_trainers_switches_are_summed_up():
    outcomes = [
        {
            "stall_s": s, "peak_extra_bytes": n, "max_logprob_difference": 1e-6 * n, "rolled_back": back,
            "phases_s": {"moving": s / 2, **({"moving back": 0.125} if back else {})}, "cpu_s": 2 * s,
        }
        for s, n, back in ((0.5, 10, False), (2.0, 30, True), (1.0, 20, False))
    ]  # fmt: skip
    found = trainer.figures(outcomes)
    assert (found["trainer_ms_p50"], found["trainer_ms_worst"]) == (1000.0, 2000.0)
    assert found["trainer_peak_extra_bytes"] == 30 and found["trainer_rolled_back"] == 1
    assert found["trainer_max_logprob_diff"] == pytest.approx(3e-5)
    assert found["trainer_phase_ms_p50"] == {"moving": 500.0, "moving back": 0.0}
    assert found["trainer_cpu_ms_p50"] == 2000.0
    assert found["trainer_switches"] == outcomes


def test_the_parallelisms_of_engines_that_share_a_device():
    assert WORK.parallelisms == (Parallelism(2, 1), Parallelism(1, 2))
    shared = replace(WORK, engines=(2, 1, 2))
    assert shared.parallelisms == (Parallelism(2, 1), Parallelism(1, 1), Parallelism(2, 1))
    one_device = SharedDevice(EngineSpec(name="e", model_dir="", device="cuda"), 2, SPEC, shared_gpus=1)
    one_device.check(Parallelism(1, 1))
    assert [spec.device for spec in one_device.specs(Parallelism(2, 1))] == ["cuda:0", "cuda:0"]
    with pytest.raises(IllegalParallelism):
        one_device.check(Parallelism(1, 2, 2))
