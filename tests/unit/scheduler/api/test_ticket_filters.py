"""The filters of sampling, from the run file to the requests of evaluation tickets, and of no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from earl.config.check import cross_check
from earl.config.run import RunConfig
from earl.config.sampling_filters import SamplingFilters
from earl.errors import ConfigError
from services.rollout.worker.ticket_codec import decode_ticket
from services.scheduler.api.codec import TicketEncoder
from services.scheduler.state.rules import rules_of
from services.scheduler.state.tickets import Purpose, Ticket

FILTERS = SamplingFilters(repetition_penalty=1.25, top_k=7, top_p=0.9, min_p=0.05)


def run(engine: str = "torch", stop_texts: Sequence[str] = (), **evaluation: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "filters",
            "model": {"stop_texts": list(stop_texts)},
            "environment": {"name": "e"},
            "rollout": {"engine": engine},
            "evaluation": evaluation,
        }
    )


def ticket(purpose: Purpose) -> Ticket:
    return Ticket(id=1, group=1, purpose=purpose, env_seed=1, sample_seed=2, min_version=1, temperature=1.0)


@pytest.mark.parametrize("purpose", Purpose)
def test_filters_go_with_tickets_of_evaluations_alone(purpose: Purpose) -> None:
    filtered = run(repetition_penalty=1.25, top_k=7, top_p=0.9, min_p=0.05)
    sent = TicketEncoder(filtered, {}).encode(ticket(purpose))
    expected = FILTERS if purpose is Purpose.EVALUATE else SamplingFilters()
    assert decode_ticket(sent).filters == expected
    plain = TicketEncoder(run(), {}).encode(ticket(purpose))
    assert not plain.HasField("filters") and decode_ticket(plain).filters == SamplingFilters()


def test_only_filters_that_filter_and_stop_texts_make_another_setting_of_evaluations() -> None:
    configs = (run(), run(top_p=1.0, top_k=0), run(top_p=0.9), run(stop_texts=["."]))
    settings = [rules_of(config).evaluation_setting for config in configs]
    assert settings[0] == settings[1] and len(set(settings)) == 3


def test_sglang_is_refused_by_name() -> None:
    cross_check(run("vllm", top_p=0.9))
    cross_check(run("sglang", top_p=1.0))
    with pytest.raises(
        ConfigError, match=r'evaluation\.top_p = 0\.9 with rollout\.engine = "sglang"'
    ) as caught:
        cross_check(run("sglang", top_p=0.9))
    assert caught.value.remedy
    cross_check(run("vllm", ["a b"]))
    with pytest.raises(ConfigError, match=r"model\.stop_texts = \['a b'\] with rollout\.engine"):
        cross_check(run("sglang", ["a b"]))


@pytest.mark.parametrize("text", ["", "x" * 257])
def test_a_stop_text_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.stop_texts has a text of {len(text)} characters"):
        cross_check(run("torch", ["x" * 256, text]))


@pytest.mark.parametrize(
    ("key", "value"),
    [("top_k", -1), ("top_p", 0), ("top_p", 1.5), ("min_p", -0.1), ("min_p", 2), ("repetition_penalty", 0)],
)
def test_a_filter_out_of_its_range_is_refused(key: str, value: float) -> None:
    evaluation: dict[str, Any] = {key: value}
    with pytest.raises(ValueError, match=key):
        run(**evaluation)
