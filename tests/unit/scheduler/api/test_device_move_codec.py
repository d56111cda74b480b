"""A move of devices from the scheduler's record to words: of two stages, of three, and old ones."""

from __future__ import annotations

import msgspec
import pytest

from earl.cli.lib.switches import devices_text, move_text
from earl.stack.codec import decode_move
from earl.v1 import scheduler_pb2
from services.scheduler.api.codec import encode_move
from services.scheduler.state.device_move import DeviceMove, MovePhase
from services.scheduler.state.run import RunCounters
from services.scheduler.state.switch_records import By

TWO = DeviceMove(
    number=3, before=(6, 2), after=(5, 3), holds=(5, 3), by=By.OPERATOR, reason="asked",
    phase=MovePhase.ENDED, stall_s=1.5, seconds=4.0,
)  # fmt: skip
THREE = DeviceMove(
    number=4, before=(4, 2, 2), after=(4, 3, 1), holds=(4, 2, 1), by=By.SELECTOR, reason="quicker",
    phase=MovePhase.TAKING,
)  # fmt: skip


def test_a_move_of_two_stages_names_no_reference_stage():
    move = decode_move(encode_move(TWO))
    assert move.before == {"rollout": 6, "trainer": 2} and not move.running
    assert move_text(move) == (
        "rollout 6 → 5, trainer 2 → 3 in 4.00 s, the trainer stood still for 1.50 s (move 3)"
    )


def test_a_move_of_three_stages_tells_who_changes():
    move = decode_move(encode_move(THREE))
    assert move.holds == {"rollout": 4, "trainer": 2, "reference": 1} and move.running
    assert move_text(move) == ("devices are moving: trainer 2 → 3, reference 2 → 1 (taking, move 4): quicker")
    assert devices_text(move.holds) == "rollout 4, trainer 2, reference 1"
    ended = msgspec.structs.replace(THREE, phase=MovePhase.ENDED, stall_s=2.0, seconds=3.0)
    text = move_text(decode_move(encode_move(ended)))
    assert "the trainer and the reference stage stood still for 2.00 s" in text
    assert ended.cost_s == pytest.approx(2.0 + 1 / 8)


def test_a_move_that_changed_replicas_names_the_layouts():
    before, after = {"rollout": (1, 1, 1), "trainer": (1, 1, 1)}, {"rollout": (1, 1, 1), "trainer": (1, 2, 1)}
    changed = msgspec.structs.replace(
        TWO, after=(4, 4), holds=(4, 4), replicas_before=before, replicas_after=after
    )
    move = decode_move(encode_move(changed))
    assert move.layouts == {"rollout": "dp4", "trainer": "dp2·cp2"}
    assert move_text(move).startswith("rollout 6 → 4, trainer 2 → 4 as dp2·cp2 in 4.00 s")
    assert decode_move(encode_move(TWO)).layouts == {}


def test_a_scheduler_of_before_knew_two_stages():
    old = scheduler_pb2.DeviceMove(number=1, phase="ended", before={"rollout": 3, "trainer": 1})
    assert decode_move(old).before == {"rollout": 3, "trainer": 1}


def test_records_of_both_kinds_are_read_as_they_were_stored():
    for move in (TWO, THREE):
        stored = msgspec.json.encode(RunCounters(move=move))
        assert msgspec.json.decode(stored, type=RunCounters).move == move
    assert (TWO.giver, TWO.taker, TWO.changes) == ("rollout", "trainer", {"rollout": -1, "trainer": 1})
    assert (THREE.giver, THREE.taker) == ("reference", "trainer")
    assert msgspec.structs.replace(TWO, before=(5, 2)).giver == ""
