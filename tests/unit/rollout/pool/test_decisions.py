"""Checks what a switch decides without engines: parallelisms, places, move or compute, memory, joined turns,
messages."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import IllegalParallelism
from earl.models.spec import ModelSpec
from earl.obs.memory import DeviceMemory, available_bytes, host_bytes
from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import EngineSpec, EngineStats, GenerateRequest, Generation
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.kv_placement import Rates, place, worth_moving
from services.rollout.pool.memory_fit import CUDA_PROCESS_BYTES, fits_with_old
from services.rollout.pool.parity import difference
from services.rollout.pool.turn import ResumableTurn

# 8 heads, of which 2 kv_heads: from tp 4 on, ranks share one.
MODEL = ModelSpec("llama", 64, 2, 8, 2, 8, 64, 97)


def devices(engines=4, tp=1, **fields: Any) -> PoolDevices:
    base = EngineSpec(name="w", model_dir="", tp=tp, max_sequences=8, max_context_tokens=512, **fields)
    return PoolDevices(base, engines, MODEL)


# --- parallelisms -----------------------------------------------------------------------------------------


def test_a_pool_holds_as_many_sequences_and_bytes_whatever_its_parallelism():
    pool = devices(kv_tokens=100)
    assert [str(parallelism) for parallelism in pool.legal] == ["dp4", "dp2·tp2", "tp4"]
    engines = {parallelism.tp: pool.specs(parallelism) for parallelism in pool.legal}
    assert {tp: (len(e), e[0].max_sequences, e[0].kv_tokens) for tp, e in engines.items()} == {
        1: (4, 9, 100),
        2: (2, 17, 200),
        # Each rank holds one of two kv_heads, as with tp 2: the bytes of a device hold no more tokens.
        4: (1, 33, 200),
    }


def test_engines_take_their_devices_in_order_and_names_of_their_epoch():
    pool = devices(device="cuda")
    assert [spec.device for spec in pool.specs(Parallelism(2, 2))] == ["cuda:0", "cuda:2"]
    spread = devices(device="auto").specs(Parallelism(2, 2))
    assert [(spec.device_kind, spec.first_device) for spec in spread] == [("auto", 0), ("auto", 2)]
    assert [spec.name for spec in pool.specs(Parallelism(2, 2), 7)] == [
        "w/engine-0-epoch-7",
        "w/engine-1-epoch-7",
    ]
    assert [spec.device for spec in devices(device="cpu").specs(Parallelism(1, 4))] == ["cpu"]


def test_a_pool_of_engines_with_ranks_can_become_smaller_ones():
    specs = devices(engines=1, tp=4, kv_tokens=100).specs(Parallelism(4, 1))
    assert len(specs) == 4 and (specs[0].max_sequences, specs[0].kv_tokens) == (3, 50)


@pytest.mark.parametrize("parallelism", [Parallelism(3, 1), Parallelism(2, 1, 2), Parallelism(2, 2, 1, 2)])
def test_other_devices_are_refused_and_what_is_legal_is_said(parallelism):
    with pytest.raises(IllegalParallelism, match="dp4 or dp2·tp2 or tp4"):
        devices().check(parallelism)


def test_what_engines_hold_and_which_hold_more():
    pool = devices(kv_tokens=100)
    assert pool.holds(1, 100) and not pool.holds(1, 101) and not pool.holds(2, 513)
    assert pool.wider(1, 150) == [2, 4]
    assert pool.wider(2, 150) == [] and pool.wider(1, 201) == []
    assert devices().holds(1, 512) and devices().wider(1, 600) == []


def test_engines_that_devices_of_other_stages_would_make_count_as_wider():
    pool = replace(devices(engines=1, kv_tokens=100), most=3)
    assert pool.count == 1 and pool.wider(1, 150) == [2], "of at most three devices, in a later division"
    assert pool.wider(1, 201) == [] and pool.wider(2, 150) == []
    assert replace(pool, most=0).wider(1, 150) == []


# --- places ---------------------------------------------------------------------------------------


def test_the_longest_go_first_each_where_least_is():
    tokens = {"a": 100, "b": 60, "c": 50, "d": 10}
    assert place(tokens, 2, 8) == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert place(tokens | {"e": 90}, 2, 8, fixed={"a": 1, "gone": 0}) == {
        "a": 1, "e": 0, "b": 0, "c": 1, "d": 0,
    }  # fmt: skip


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=40),
    st.integers(1, 8),
    st.integers(1, 12),
)
def test_places_are_balanced_to_within_one_session(tokens, engines, places):
    placed = place(tokens, engines, places)
    assert len(placed) == min(len(tokens), engines * places)
    loads, counts = [0] * engines, [0] * engines
    for session, engine in placed.items():
        loads[engine] += tokens[session]
        counts[engine] += 1
    assert max(counts) <= places
    if len(tokens) <= places:
        assert max(loads) - min(loads) <= max(tokens.values(), default=0) + 64 * max(counts)


def test_the_shortest_are_left_out_where_room_is_short():
    tokens = {"a": 500, "b": 400, "c": 100, "d": 50}
    assert place(tokens, 2, 8, engine_tokens=600) == {"a": 0, "b": 1, "d": 1}
    assert place(tokens, 1, 2) == {"a": 0, "b": 0}


def test_kv_moves_where_that_is_quicker():
    tokens = {"short": 1, "long": 1000}
    assert worth_moving(tokens, 1000, Rates(1e6, 0.0, 1e4)) == set()  # 1 s a thousand tokens against 0.1 s
    assert worth_moving(tokens, 1000, Rates(1e9, 0.0, 1e4)) == {"long"}  # 2 ms against 100
    assert worth_moving(tokens, 1000, Rates(1e9, 0.0, 100)) == {"short", "long"}
    # 99 ms are saved.
    assert worth_moving(tokens, 1000, Rates(1e9, 0.09, 1e4)) == {"long"}
    assert worth_moving(tokens, 1000, Rates(1e9, 0.11, 1e4)) == set()


def test_rates_are_what_was_measured():
    rates = Rates()
    assert rates.prefilled([(0, 1.0), (5, 0.0)]) is rates and rates.read(0, 1.0) is rates
    assert rates.prefilled([(100, 2.0), (90, 0.5)]).prefill_tokens_per_s == 180
    little, much = rates.read(500, 0.25), rates.read(1 << 24, 0.26)
    assert (little.round_s, little.bytes_per_s) == (0.13, rates.bytes_per_s)
    assert much.bytes_per_s == (1 << 24) / 0.25 and much.round_s == rates.round_s


# --- memory ---------------------------------------------------------------------------------------


def stats(memory: DeviceMemory | None, kv_tokens=0, kv_used_tokens=0) -> EngineStats:
    return EngineStats(
        version=1, tp=1, running=0, waiting=0, retained=0, kv_used_fraction=0, steps=0,
        generated_tokens=0, prefilled_tokens=0, reused_tokens=0, evicted_sessions=0, step_s=0,
        kv_tokens=kv_tokens, kv_used_tokens=kv_used_tokens, kv_token_bytes=10, memory=memory,
    )  # fmt: skip


def test_on_a_host_the_new_need_what_the_old_have_and_copies_of_the_weights():
    pool, one, four = devices(), Parallelism(1, 4), Parallelism(4, 1)
    old = [stats(DeviceMemory(10_000_000, 1 << 40, "host"))]
    assert pool.weight_bytes == MODEL.parameters * 4
    enough = round((10_000_000 + 3 * pool.weight_bytes) / 0.9) + 1
    assert fits_with_old(old, pool, one, four, enough)
    assert not fits_with_old(old, pool, one, four, enough - 10)
    assert fits_with_old(old, pool, four, four, round(10_000_000 / 0.9) + 1)
    # What changes hands lies in an arena meanwhile.
    used = [stats(DeviceMemory(10_000_000, 1 << 40, "host"), kv_used_tokens=800)]
    assert not fits_with_old(used, pool, one, four, enough + round(0.9 * 10_000))
    assert fits_with_old(used, pool, one, four, enough + round(10_000 / 0.9) + 1)
    # Nobody says what the old ones take: the weights are needed at least.
    assert not fits_with_old([], pool, one, four, 4 * pool.weight_bytes)
    assert fits_with_old([], pool, one, four, 5 * pool.weight_bytes)


def test_a_device_needs_room_for_weights_and_kv_again():
    pool, same = devices(), Parallelism(2, 2)
    needed = pool.weight_bytes / 2 + 1000 * 10 + CUDA_PROCESS_BYTES
    size = round(needed / 0.9) + 10
    assert fits_with_old([stats(DeviceMemory(0, size), 1000)], pool, same, same, 0)
    assert not fits_with_old([stats(DeviceMemory(20, size), 1000)], pool, same, same, 1 << 50)


def test_what_is_available_is_part_of_the_host():
    assert 0 < available_bytes() <= host_bytes()


# --- turns ----------------------------------------------------------------------------------------


def part(ids, finish, reused=0) -> Generation:
    return Generation(
        request_id="r", ids=ids, logprobs=[-float(one) for one in ids], versions=[one // 10 for one in ids],
        finish=finish, reused_tokens=reused,
    )  # fmt: skip


def test_parts_are_one_generation_and_each_asks_for_the_rest():
    asked = GenerateRequest(request_id="r", ids=[1, 2], max_new_tokens=5, seed=9, session="s")
    turn = ResumableTurn(asked)
    assert turn.rest() is asked and (turn.tokens, turn.most_tokens) == (2, 7)
    turn.add(part([], "abort", 2))
    assert turn.rest() == asked
    turn.add(part([13, 14], "abort", 4))
    assert turn.rest() == msgspec.structs.replace(asked, ids=[1, 2, 13, 14], max_new_tokens=3, answered=2)
    assert turn.add(part([25], "stop", 3)) == Generation(
        request_id="r", ids=[13, 14, 25], logprobs=[-13.0, -14.0, -25.0], versions=[1, 1, 2], finish="stop",
        reused_tokens=2,
    )  # fmt: skip
    assert asked.ids == [1, 2] and turn.tokens == 5


def test_what_is_no_number_differs_without_end():
    assert difference(-1.5, -1.25) == 0.25
    assert difference(float("nan"), 0.0) == difference(0.0, float("nan")) == float("inf")
