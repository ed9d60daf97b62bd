"""A real Prometheus, as operators of SGLang configure it, and a real server that was given their flag."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import pytest
from tests.monitoring_files import PROMETHEUS, dashboard_queries
from tests.real_server import RealServer, real_server
from tests.tiny_models import make_tiny, make_tiny_tokenizer

Answer = TypeVar("Answer")

WINDOW_SECONDS: Final = 2
PATIENCE_SECONDS: Final = 60.0
"""How long a condition may take to come true; what it takes is a few seconds."""

OPERATORS_CONFIG: Final = """
global:
  evaluation_interval: 1s
rule_files: [alert.yml, {rules}/*.yml]
scrape_configs:
  - job_name: 'sglang'
    static_configs: [{{targets: ['{target}']}}]
    metrics_path: '/metrics'
    scrape_interval: 1s
"""
OPERATORS_ALERT: Final = """
groups:
  - name: sglang
    rules:
      - alert: LowCacheHitRate
        expr: sglang_cache_hit_rate < 0.1
        for: 1s
        labels: {severity: warning}
"""


class Prometheus:
    """Started by `prometheus_of`."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._url = url
        self._process = process
        self._log_path = log_path

    def is_ready(self) -> bool:
        assert self._process.poll() is None, f"Prometheus ended while it started: {self._log_path.read_text()}"
        try:
            return httpx.get(f"{self._url}/-/ready").is_success
        except httpx.TransportError:
            return False

    def query(self, expression: str) -> list[Any]:
        """The samples now. Raises `HTTPStatusError` for what Prometheus does not understand or cannot evaluate."""
        answer = httpx.get(f"{self._url}/api/v1/query", params={"query": expression})
        if answer.is_error:
            raise AssertionError(f"{expression}: {answer.text}")
        result: list[Any] = answer.json()["data"]["result"]
        return result

    def value(self, expression: str) -> float | None:
        """Of the one sample that there is; None while there is none."""
        samples = self.query(expression)
        return float(samples[0]["value"][1]) if samples else None

    def firing(self) -> list[str]:
        """The names of the alerts that fire."""
        return [sample["metric"]["alertname"] for sample in self.query('ALERTS{alertstate="firing"}')]


@contextmanager
def prometheus_of(server: RealServer, folder: Path) -> Iterator[Prometheus]:
    binary = shutil.which("prometheus")
    assert binary is not None, "these tests need Prometheus; on Debian: apt install prometheus"
    (folder / "alert.yml").write_text(OPERATORS_ALERT)
    config = folder / "prometheus.yml"
    config.write_text(OPERATORS_CONFIG.format(target=f"{server.host}:{server.port}", rules=PROMETHEUS / "rules"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    log_path = folder / "prometheus.log"
    with log_path.open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://{address}", process, log_path)
        wait_for(prometheus.is_ready)
        yield prometheus
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait_for(condition: Callable[[], Answer], meanwhile: Callable[[], object] = lambda: time.sleep(0.1)) -> Answer:
    """What `condition` says once it says something true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        meanwhile()
    return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("server")
    weights = make_tiny_tokenizer(make_tiny("llama", folder / "weights"))
    flags = {
        "--model-path": str(weights),
        "--served-model-name": "tiny",
        "--dtype": "float32",
        "--compile": "off",
        "--max-total-tokens": "8192",
        "--metrics-compat": "sglang",
        "--metrics-window": str(WINDOW_SECONDS),
        "--hicache-storage-backend": "file",
        "--hicache-storage-backend-extra-config": json.dumps({"path": str(folder / "store"), "max_bytes": "64MiB"}),
    }
    words = [word for flag in flags.items() for word in flag]
    with real_server(folder, "--enable-metrics", "--enable-hierarchical-cache", *words) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with prometheus_of(server, tmp_path_factory.mktemp("prometheus")) as prometheus:
        yield prometheus


def ask(server: RealServer, prompt: list[int]) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status()


def test_the_operators_alert_fires_while_nothing_repeats_and_resolves_when_it_does(
    server: RealServer, prometheus: Prometheus
) -> None:
    first = 0

    def ask_something_new() -> None:
        nonlocal first
        first += 1
        ask(server, [2 + first // 400, 2 + first % 400] * 60)

    wait_for(lambda: "LowCacheHitRate" in prometheus.firing(), ask_something_new)

    def ask_the_same() -> None:
        ask(server, [7] * 480)

    wait_for(lambda: "LowCacheHitRate" not in prometheus.firing(), ask_the_same)
    # Since it got better, not since its value was lost.
    wait_for(lambda: (prometheus.value("sglang_cache_hit_rate") or 0) > 0.9, ask_the_same)
    assert prometheus.query('{__name__="sglang:cache_hit_rate", job="sglang", model_name="tiny"}')
    assert prometheus.query("up == 1")


def test_every_query_of_the_dashboard_has_an_answer(server: RealServer, prometheus: Prometheus) -> None:
    ask(server, [7] * 480)
    # Rates need two scrapes with the counter in them; the store is asked for its size after a while.
    wait_for(lambda: prometheus.query("rate(pagefall_requests_total[1m])"))
    wait_for(lambda: prometheus.query("pagefall_storage_used_bytes"))
    silent = [query for query in dashboard_queries() if not prometheus.query(query)]
    # Nothing was refused.
    assert silent == ['sum by (reason) (rate(pagefall_refused_requests_total{instance=~".*"}[1m])) > 0']


def test_prometheus_makes_the_series_of_the_recording_rules(prometheus: Prometheus) -> None:
    for name in ("cache_hit_rate:15m", "cache_hit_rate_ceiling:15m", "time_to_first_token_seconds:p90_15m"):
        [sample] = wait_for(partial(prometheus.query, f"pagefall:{name}"))
        assert float(sample["value"][1]) > 0


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("cache_hit_rate", ["cache_hit_rate"]),
        ("(cache_hit|num_cached|num_running)", ["cache_hit_rate", "num_cached_tokens", "num_running_reqs"]),
    ],
)
def test_what_guides_tell_their_readers_to_type_shows_something(
    server: RealServer, pattern: str, names: list[str]
) -> None:
    lines = httpx.get(f"{server.url}/metrics").raise_for_status().text.splitlines()
    found = [line for line in lines if re.search(pattern, line) and not line.startswith("#")]
    for name in names:
        for prefix in ("sglang:", "sglang_"):
            assert [line for line in found if line.startswith(prefix + name) and 'model_name="tiny"' in line], name
