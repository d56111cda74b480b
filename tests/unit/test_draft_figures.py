"""The figures of a step that follow from what was counted of drafts."""

from earl.draft_figures import COUNTED, step_figures


def test_a_step_without_drafts_has_no_figures():
    assert step_figures({}) == step_figures(dict.fromkeys(COUNTED, 0.0)) == {}


def test_shares_are_given_where_something_was_drafted():
    counted = {
        "drafting_steps": 100.0, "drafting_tokens": 150.0, "drafted_tokens": 80.0, "accepted_tokens": 50.0,
        "drafts.task.drafted_tokens": 60.0, "drafts.task.accepted_tokens": 45.0,
        "drafts.environment.drafted_tokens": 0.0, "drafts.environment.accepted_tokens": 0.0,
        "drafts.context.drafted_tokens": 20.0, "drafts.context.accepted_tokens": 5.0,
    }  # fmt: skip
    assert counted.keys() == set(COUNTED)
    assert step_figures(counted) == {
        "tokens_per_forward": 1.5,
        "draft_acceptance": 0.625,
        "drafts.task.acceptance": 0.75,
        "drafts.context.acceptance": 0.25,
    }
    # An engine that drafts, and finds nothing to draft.
    assert step_figures({"drafting_steps": 3.0, "drafting_tokens": 3.0}) == {"tokens_per_forward": 1.0}
