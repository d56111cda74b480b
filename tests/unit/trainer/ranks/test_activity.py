"""A rank's reports of what it does now."""

from __future__ import annotations

from services.trainer.ranks.activity import ASLEEP, OFFLOADING, TRAINING, WAITING, Activity


def test_the_part_of_a_batch_that_is_trained_is_reported_while_it_is_trained():
    activity = Activity(gauges={"train_s": 2.0})
    with activity.phase(TRAINING):
        assert activity.reported() == {"train_s": 2.0}
        activity.progressed(0.25)
        assert activity.reported() == {"train_s": 2.0, "train_fraction": 0.25}
    assert activity.reported() == activity.gauges == {"train_s": 2.0}


def test_a_rank_whose_state_is_out_of_the_device_is_asleep_between_its_phases():
    activity = Activity()
    activity.idle = ASLEEP
    with activity.phase(OFFLOADING):
        assert activity.doing == OFFLOADING
    assert activity.doing == ASLEEP and activity.reported() == {"asleep": 1.0}
    # Sleeping is no work: it has no spans.
    assert [span.what for span in activity.take_spans()] == [OFFLOADING]
    assert activity.take_spans() == []
    activity.idle = WAITING
    with activity.phase(TRAINING):
        assert activity.reported() == {}
    assert activity.doing == WAITING
