"""The files of docker/prometheus and docker/grafana, read for tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml  # type: ignore[import-untyped]

REPOSITORY: Final = Path(__file__).parents[1]
PROMETHEUS: Final = REPOSITORY / "docker" / "prometheus"
GRAFANA: Final = REPOSITORY / "docker" / "grafana"
DASHBOARD: Final = GRAFANA / "dashboards" / "pagefall.json"


class Rule(NamedTuple):
    """`name` is an alert's, or that of the series which a recording rule makes."""

    name: str
    is_alert: bool
    expression: str
    labels: dict[str, str]
    annotations: dict[str, str]


def rules() -> list[Rule]:
    groups = [group for path in sorted(PROMETHEUS.glob("rules/*.yml")) for group in load(path)["groups"]]
    return [
        Rule(
            rule.get("alert") or rule["record"],
            "alert" in rule,
            rule["expr"],
            rule.get("labels", {}),
            rule.get("annotations", {}),
        )
        for group in groups
        for rule in group["rules"]
    ]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def panels() -> list[dict[str, Any]]:
    """The dashboard's, without the headings between them."""
    every: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in every if panel["type"] != "row"]


def dashboard_queries() -> list[str]:
    """As Prometheus gets them from Grafana, for all servers."""
    variables = {"$__rate_interval": "1m", "$instance": ".*"}
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    for variable, value in variables.items():
        queries = [query.replace(variable, value) for query in queries]
    return queries


def promtool(*words: str | Path) -> str:
    """What it says. Raises `AssertionError` with it if it has found something wrong."""
    assert shutil.which("promtool"), "these tests need promtool; on Debian: apt install prometheus"
    command = ["promtool", *map(str, words)]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout
