"""docker/prometheus and docker/grafana: they are valid, say what they should, and ask for what the server tells."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Final

import pytest
from tests.monitoring_files import (
    DASHBOARD,
    GRAFANA,
    PROMETHEUS,
    REPOSITORY,
    dashboard_queries,
    load,
    panels,
    promtool,
    rules,
)
from tests.promql import Live, complaints, live
from tests.unit.metrics.samples import DEVICE, HOST, metrics_of

from pagefall.messages import ControllerStats, SchedulerStats

COLUMNS: Final = 24
GUIDE: Final = REPOSITORY / "docs" / "monitoring.md"


@pytest.fixture(scope="module")
def served() -> Live:
    """What a server with all tiers tells, and what the rules make of it."""
    stats = SchedulerStats(num_running=1, num_queued=0, device_pages=DEVICE, host_pages=HOST)
    store = ControllerStats(breaker="closed", storage_used_bytes=1, storage_num_pages=1, storage_limit_bytes=2)
    told = live(metrics_of(lambda: stats, lambda: store).render().decode())
    recorded = {
        rule.name: dict.fromkeys(("job", "instance"), frozenset[str]()) for rule in rules() if not rule.is_alert
    }
    return {**told, **recorded, "up": {}}


def test_prometheus_takes_the_configuration_and_its_rules() -> None:
    said = promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert "2 rule files found" in said


def test_prometheus_takes_the_configuration_of_the_guide(tmp_path: Path) -> None:
    [block] = re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)
    config = tmp_path / "prometheus.yml"
    config.write_text(block.replace("docker/", f"{REPOSITORY}/docker/"))
    assert "2 rule files found" in promtool("check", "config", config)
    of_the_guide, of_the_files = load(config), load(PROMETHEUS / "prometheus.yml")
    assert of_the_guide["global"] == of_the_files["global"]
    jobs = [config["scrape_configs"][0]["job_name"] for config in (of_the_guide, of_the_files)]
    assert jobs == ["pagefall", "pagefall"]


def test_each_alert_fires_when_it_should_and_not_otherwise() -> None:
    promtool("test", "rules", *sorted(PROMETHEUS.glob("tests/*.yml")))


def test_each_alert_is_in_the_tests_of_the_rules_and_in_the_guide() -> None:
    tested = "".join(path.read_text() for path in PROMETHEUS.glob("tests/*.yml"))
    guide = GUIDE.read_text()
    for rule in rules():
        if rule.is_alert:
            assert f'alertname="{rule.name}", alertstate="firing"' in tested, rule.name
            assert f"`{rule.name}`" in guide


def test_each_alert_has_a_severity_and_says_in_words_what_to_do() -> None:
    alerts = [rule for rule in rules() if rule.is_alert]
    assert len(alerts) == 12
    for alert in alerts:
        assert alert.labels["severity"] in ("critical", "warning", "info"), alert.name
        assert alert.annotations.keys() == {"summary", "description"}, alert.name
        assert len(alert.annotations["description"]) > 100, alert.name


def test_rules_ask_only_for_what_the_server_tells(served: Live) -> None:
    assert {rule.name: said for rule in rules() if (said := complaints(rule.expression, served))} == {}


def test_the_dashboard_asks_only_for_what_the_server_tells(served: Live) -> None:
    assert {query: said for query in dashboard_queries() if (said := complaints(query, served))} == {}


def test_every_family_of_the_server_is_on_the_dashboard(served: Live) -> None:
    asked = " ".join(dashboard_queries())
    families = {
        name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        for name in served
        if name.startswith("pagefall_")
    }
    assert {family for family in families if family not in asked} == set()


def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    path = tmp_path / "queries.yml"
    queries = [{"record": f"query:{index}", "expr": query} for index, query in enumerate(dashboard_queries())]
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": queries}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", path)


def test_every_panel_has_a_title_a_unit_and_a_word_of_explanation() -> None:
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}, panel["title"]


def test_no_two_panels_lie_over_each_other() -> None:
    cells = [
        (row, column)
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for row, column in itertools.product(
            range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"]),
            range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"]),
        )
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for _, column in cells) < COLUMNS


def test_grafana_is_given_the_dashboard_and_prometheus_at_its_pace() -> None:
    [provider] = load(GRAFANA / "provisioning" / "dashboards" / "pagefall.yml")["providers"]
    [source] = load(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert Path(provider["options"]["path"]).name == DASHBOARD.parent.name
    assert source["jsonData"]["timeInterval"] == load(PROMETHEUS / "prometheus.yml")["global"]["scrape_interval"]
