"""One text out of many workers' metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pagefall.router.worker_metrics import merged_metrics


def of_a_worker(value: float) -> str:
    registry = CollectorRegistry()
    Counter("tokens", "Tokens", ["source"], registry=registry).labels('odd "} {"').inc(value)
    Gauge("token_usage", "No part of the family before", registry=registry).set(value)
    Histogram("seconds", "Seconds", buckets=[1.0], registry=registry).observe(value)
    Gauge("sglang:usage", "With a colon", registry=registry).set(value)
    return generate_latest(registry).decode()


def test_each_family_comes_once_and_each_sample_with_its_worker() -> None:
    texts = {"w0": of_a_worker(0.5), "w1": of_a_worker(2.0)}
    merged = merged_metrics(texts)
    for kind in ("HELP", "TYPE"):
        headers = [line.split()[2] for line in merged.splitlines() if line.startswith(f"# {kind}")]
        assert len(headers) == len(set(headers)) > 4
    found = {
        (sample.labels.pop("worker"), sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(merged)
        for sample in family.samples
    }
    assert found == {
        (worker, sample.name, *sorted(sample.labels.items())): sample.value
        for worker, text in texts.items()
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    kinds = {family.name: family.type for family in text_string_to_metric_families(merged)}
    assert (kinds["tokens"], kinds["seconds"], kinds["sglang:usage"]) == ("counter", "histogram", "gauge")


def test_samples_of_a_family_stand_together() -> None:
    lines = merged_metrics({"w0": "a 1\n# TYPE b gauge\nb{} 2", "w1": '# TYPE b gauge\nb{x="y"} 3 99\na 4'})
    assert lines.splitlines() == [
        'a{worker="w0"} 1',
        'a{worker="w1"} 4',
        "# TYPE b gauge",
        'b{worker="w0"} 2',
        'b{worker="w1",x="y"} 3 99',
    ]


def test_what_is_no_metric_is_left_out() -> None:
    assert merged_metrics({"w0": "<html>\n\n# a comment\n{}\n# HELP alone Without samples\n"}) == ""
