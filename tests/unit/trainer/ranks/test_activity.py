"""A rank's reports of what it does now."""

from __future__ import annotations

from services.trainer.ranks.activity import TRAINING, Activity


def test_the_part_of_a_batch_that_is_trained_is_reported_while_it_is_trained():
    activity = Activity(gauges={"train_s": 2.0})
    with activity.phase(TRAINING):
        assert activity.reported() == {"train_s": 2.0}
        activity.progressed(0.25)
        assert activity.reported() == {"train_s": 2.0, "train_fraction": 0.25}
    assert activity.reported() == activity.gauges == {"train_s": 2.0}
