"""Families of samples, in the shape that `prometheus_client` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pagefall.metrics.histogram import Histogram

_PREFIX: Final = "pagefall_"

Label = TypeVar("Label", bound=str)
Labels = TypeVar("Labels", bound=tuple[str, ...])


def counter(name: str, documentation: str, value: float) -> Metric:
    """Scraped as `pagefall_<name>_total`."""
    return CounterMetricFamily(_PREFIX + name, documentation, value)


def counters(name: str, documentation: str, label: str, values: Mapping[Label, float]) -> Metric:
    """One sample for each value of `label`."""
    family = CounterMetricFamily(_PREFIX + name, documentation, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], value)
    return family


def gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, documentation, value)


def gauges(name: str, documentation: str, labels: tuple[str, ...], values: Mapping[Labels, float]) -> Metric:
    """One sample for each tuple of values of `labels`."""
    family = GaugeMetricFamily(_PREFIX + name, documentation, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def histogram(name: str, documentation: str, values: Histogram) -> Metric:
    return HistogramMetricFamily(_PREFIX + name, documentation, buckets=values.cumulative(), sum_value=values.sum)


def histograms(name: str, documentation: str, label: str, values: Mapping[Label, Histogram]) -> Metric:
    """One histogram for each value of `label`."""
    family = HistogramMetricFamily(_PREFIX + name, documentation, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], buckets=value.cumulative(), sum_value=value.sum)
    return family
