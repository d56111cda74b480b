"""Samples in Prometheus's text format.

prometheus-client is imported by the first call, not with this module: a service that is never scraped
starts without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate
from typing import Any

from earl.errors import ConfigError
from earl.obs.catalogue import METRICS, Metric, Sample
from earl.obs.histogram import Histogram


def exposition(samples: Iterable[Sample], accept: str = "") -> tuple[bytes, str]:
    """The text and its content type, as `accept` (an Accept header) requires.

    Raises ConfigError for a sample that the catalogue does not have so.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    families = list(_families(samples))

    class Once:
        def collect(self) -> Iterator[Any]:
            yield from families

        def describe(self) -> list[Any]:
            return []

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_process())
    registry.register(Once())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


@cache
def _process() -> Any:
    """CPU seconds, memory and open files of this process, under the names that Prometheus gives them."""
    from prometheus_client import ProcessCollector

    return ProcessCollector(registry=None)


def _families(samples: Iterable[Sample]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds: dict[str, Any] = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    families: dict[str, Any] = {}
    for sample in samples:
        metric = METRICS.get(sample.name)
        if metric is None or set(metric.labels) != set(sample.labels):
            raise ConfigError(
                f"{sample.name} with labels {sorted(sample.labels)} is not in the catalogue of metrics",
                "add it to earl/obs/catalogue.py",
            )
        family = families.get(metric.name)
        if family is None:
            family = families[metric.name] = kinds[metric.kind](
                metric.name, metric.help, labels=metric.labels
            )
        _add(family, metric, sample)
    for name in METRICS:
        if name in families:
            yield families[name]


def _add(family: Any, metric: Metric, sample: Sample) -> None:
    values = [sample.labels[label] for label in metric.labels]
    if isinstance(sample.value, Histogram):
        histogram = sample.value
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(map(float, histogram.counts)), strict=True))
        family.add_metric(values, buckets, histogram.sum)
    else:
        family.add_metric(values, sample.value)
