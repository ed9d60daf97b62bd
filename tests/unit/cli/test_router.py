from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pagefall.cli.flags import options
from pagefall.cli.reference import render_reference
from pagefall.cli.router import ROUTER_FLAGS, parse_router
from pagefall.config import HttpConfig
from pagefall.errors import ConfigError
from pagefall.router.config import ForwardConfig, RoutingConfig, TellingConfig, WorkersConfig


def test_flags_and_environment_become_the_configuration() -> None:
    config = parse_router(
        [
            "--worker-urls",
            "http://a:1, https://b:2/v1",
            "--policy",
            "round_robin",
            "--port",
            "0",
            "--health-interval=1",
        ],
        {"PAGEFALL_WORKER_API_KEY": "secret", "PAGEFALL_API_KEY": "mine"},
    )
    assert config.workers.worker_urls == ("http://a:1", "https://b:2/v1")
    assert (config.workers.worker_api_key, config.http.api_key) == ("secret", "mine")
    assert (config.routing.policy, config.http.port, config.workers.health_interval) == ("round_robin", 0, 1.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--worker-urls", "a:1"], "--worker-urls: 'a:1' is no worker's URL: write it like http://host:port"),
        (["--policy", "sticky"], "--policy: 'sticky' is not one of cache_aware"),
        (["--health-path", "health"], "--health-path: 'health' has to begin with '/'"),
        (["--disable-tokenizer", "--tokenizer-path", "x"], "--tokenizer-path contradicts --disable-tokenizer"),
        (["--max-attempts", "0"], "--max-attempts: 0 is too small"),
        (["--workers-url", "http://a"], "did you mean --worker-urls"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_fix(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_router(flags, {})
    assert message in str(refused.value)


def test_every_config_field_has_a_flag() -> None:
    parts = (WorkersConfig, RoutingConfig, ForwardConfig, HttpConfig, TellingConfig)
    of_workers = {
        "stream_keepalive_seconds",
        "max_stored_responses",
        "max_stored_response_bytes",
        "stored_response_ttl",
    }
    fields = {field for part in parts for field in part.__struct_fields__} - of_workers
    assert {option.field for option in options(ROUTER_FLAGS).values()} == fields


def test_the_committed_page_is_what_the_table_says() -> None:
    page = Path(__file__).parents[3] / "docs" / "router-flags.md"
    assert page.read_text() == render_reference(ROUTER_FLAGS, source="service/pagefall/cli/router.py"), (
        "run `make docs`"
    )


def test_a_router_that_tokenises_nothing_needs_no_torch() -> None:
    code = "import sys, pagefall.cli.router, pagefall.router.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
