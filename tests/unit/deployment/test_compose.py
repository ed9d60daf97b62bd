"""compose.yaml and .env.example, without Docker: every command is one the program takes, every file is there."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]
from tests.deployment_files import (
    DOCKER,
    DRAIN_SECONDS,
    REPOSITORY,
    check_store,
    compose,
    example_environment,
    num_bytes,
    num_seconds,
    parsed,
    words,
)
from tests.monitoring_files import DASHBOARD, GRAFANA, PROMETHEUS, load

from pagefall.config import ServeConfig
from pagefall.router.config import RouterConfig

SERVICES: Final[dict[str, Any]] = compose()["services"]
SERVERS: Final = sorted(name for name, service in SERVICES.items() if service["image"].startswith("pagefall:"))
STORES: Final = sorted(path.stem for path in (DOCKER / "stores").glob("*.json"))

PROFILES: Final = {
    "pagefall": None,
    "redis": None,
    "prometheus": None,
    "grafana": "grafana",
    "seaweedfs": "s3",
    "bucket": "s3",
    "worker-a": "cluster",
    "worker-b": "cluster",
    "router": "cluster",
    "pagefall-gpu": "gpu",
}
REFUSED_BY_COMPOSE_1: Final = ("name", "secrets", "configs", "include")


def test_each_service_is_in_its_profile_and_the_first_three_in_none() -> None:
    found = {name: service.get("profiles", [None])[0] for name, service in SERVICES.items()}
    assert found == PROFILES
    assert all(len(service.get("profiles", [None])) == 1 for service in SERVICES.values())


def test_compose_of_either_version_takes_it() -> None:
    document = compose()
    assert not [key for key in document if key in REFUSED_BY_COMPOSE_1]
    for service in SERVICES.values():
        assert "gpus" not in service
        assert "secrets" not in service.get("build", {})
        assert "start_interval" not in service.get("healthcheck", {})
        for dependency in service.get("depends_on", {}).values():
            assert dependency.keys() == {"condition"}
    assert "$" not in str(document).replace("$1", ""), "a variable in a form that 1.29 does not know"


@pytest.mark.parametrize("name", SERVERS)
def test_the_program_takes_the_command_of_each_server(name: str) -> None:
    config = parsed(words(SERVICES[name]["command"]))
    assert config.http.host == "0.0.0.0"
    assert isinstance(config, RouterConfig if name == "router" else ServeConfig)
    published = [port.rsplit(":", 1)[1] for port in SERVICES[name].get("ports", [])]
    assert published in ([], [str(config.http.port)])


@pytest.mark.parametrize("store", STORES)
def test_every_store_of_the_folder_can_be_chosen(store: str) -> None:
    config = parsed(words(compose(PAGEFALL_STORE=store)["services"]["pagefall"]["command"]))
    assert isinstance(config, ServeConfig)
    assert config.tiers.hicache_storage_backend == store
    check_store(config)


def test_more_flags_may_come_from_the_environment() -> None:
    services = compose(
        PAGEFALL_ARGS="--model-path org/model --context-length 8192", PAGEFALL_ROUTER_ARGS="--model-path org/model"
    )["services"]
    for name in ("pagefall", "worker-b", "pagefall-gpu"):
        config = parsed(words(services[name]["command"]))
        assert isinstance(config, ServeConfig)
        assert (config.model.model_path, config.model.context_length) == ("org/model", 8192)
    router = parsed(words(services["router"]["command"]))
    assert isinstance(router, RouterConfig)
    assert router.routing.model_path == "org/model"


def test_nothing_is_published_beyond_this_machine_unless_asked_for() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 5
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    assert SERVICES["pagefall"]["ports"] == ["127.0.0.1:30000:30000"]
    everywhere = compose(PAGEFALL_BIND="0.0.0.0")["services"]["pagefall"]["ports"]
    assert everywhere == ["0.0.0.0:30000:30000"]


def test_no_two_services_want_one_port() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_everything_that_is_mounted_is_there() -> None:
    volumes = compose()["volumes"]
    for name, service in SERVICES.items():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (REPOSITORY / source).exists(), f"{name}: {mount}"
                assert mount.endswith(":ro"), f"{name}: {mount}"
            else:
                assert source in volumes, f"{name}: {mount}"


def test_everything_is_checked_for_its_health_and_restarted() -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert "HEALTHCHECK" in dockerfile, "which servers inherit"
    for name, service in SERVICES.items():
        if name == "bucket":  # ends by itself
            assert service["restart"] == "on-failure"
        else:
            assert service["restart"] == "unless-stopped", name
            assert "healthcheck" in service or name in SERVERS, name


def test_what_others_depend_on_says_when_it_is_ready() -> None:
    for name, service in SERVICES.items():
        for other, dependency in service.get("depends_on", {}).items():
            assert dependency["condition"] == "service_healthy", f"{name} on {other}"
            assert PROFILES[other] in (None, PROFILES[name]), f"{name} waits for {other}, which may not be started"


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_time_to_drain_and_cannot_do_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert num_seconds(service["stop_grace_period"]) > DRAIN_SECONDS
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "mem_limit" in service


def test_redis_makes_room_by_itself_and_writes_no_disk() -> None:
    command = words(SERVICES["redis"]["command"])
    settings = dict(zip(command[1::2], command[2::2], strict=True))
    assert settings["--maxmemory-policy"] == "allkeys-lru"
    assert (settings["--save"], settings["--appendonly"]) == ("", "no")
    assert num_bytes(SERVICES["redis"]["mem_limit"]) >= num_bytes(settings["--maxmemory"]) + 2 * 10**8


def test_the_router_knows_the_workers_by_their_names_here() -> None:
    router = parsed(words(SERVICES["router"]["command"]))
    assert isinstance(router, RouterConfig)
    workers = [name for name in SERVICES if name.startswith("worker-")]
    assert sorted(router.workers.worker_urls) == sorted(f"http://{name}:30000" for name in workers)
    assert SERVICES["router"]["depends_on"].keys() == set(workers)
    commands = {str(SERVICES[name]["command"]) for name in workers}
    assert len(commands) == 1, "workers of one cluster are alike"


def test_prometheus_looks_for_every_server() -> None:
    jobs = load(PROMETHEUS / "prometheus.yml")["scrape_configs"]
    looked_for = [name for job in jobs for config in job["dns_sd_configs"] for name in config["names"]]
    assert sorted(looked_for) == SERVERS
    assert {config["port"] for job in jobs for config in job["dns_sd_configs"]} == {30000}


def test_prometheus_and_grafana_find_their_files_where_these_say() -> None:
    command = words(SERVICES["prometheus"]["command"])
    targets = dict(mount.removesuffix(":ro").split(":") for mount in SERVICES["prometheus"]["volumes"])
    assert f"--config.file={targets['./docker/prometheus']}/prometheus.yml" in command
    assert f"--storage.tsdb.path={targets['prometheus']}" in command
    mounts = dict(mount.removesuffix(":ro").split(":") for mount in SERVICES["grafana"]["volumes"])
    [provider] = load(GRAFANA / "provisioning" / "dashboards" / "pagefall.yml")["providers"]
    assert mounts["./docker/grafana/dashboards"] == provider["options"]["path"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{DASHBOARD.name}"
    [source] = load(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_the_example_of_an_environment_has_every_variable_with_its_default() -> None:
    text = (REPOSITORY / "compose.yaml").read_text()
    defaults: dict[str, set[str]] = {}
    for name, default in re.findall(r"\$\{(\w+):?-([^}]*)\}", text):
        defaults.setdefault(name, set()).add(default)
    assert {name: values for name, values in defaults.items() if len(values) > 1} == {}
    example = example_environment()
    assert example.pop("COMPOSE_PROFILES") == "grafana"
    assert example == {name: values.pop() for name, values in defaults.items()}


def test_the_example_of_an_environment_gives_the_same_services() -> None:
    assert compose(**example_environment()) == compose()


def test_the_bucket_that_is_made_is_the_one_the_store_uses() -> None:
    [script] = SERVICES["bucket"]["command"]
    bucket = re.search(r"s3\.bucket\.create -name (\S+)'", script)
    assert bucket is not None
    for store in ("s3", "redis,s3"):
        settings = load(DOCKER / "stores" / f"{store}.json")
        assert settings.get("s3", settings)["bucket"] == bucket[1]
    environment = SERVICES["seaweedfs"]["environment"]
    assert {name: SERVICES["pagefall"]["environment"][name] for name in environment} == environment


def test_the_gpu_is_reserved_and_its_image_is_the_one_for_it() -> None:
    gpu = SERVICES["pagefall-gpu"]
    assert gpu["image"] != SERVICES["pagefall"]["image"]
    assert gpu["build"]["args"] == {"ACCELERATOR": "cuda"}
    [device] = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device == yaml.safe_load("{driver: nvidia, count: 1, capabilities: [gpu]}")
