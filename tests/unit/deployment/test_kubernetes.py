"""docker/kubernetes: valid for the API server, and for the program that runs in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from tests.deployment_files import (
    DOCKER,
    DRAIN_SECONDS,
    REPOSITORY,
    check_store,
    dockerfile,
    kubernetes,
    num_bytes,
    parsed,
)
from tests.monitoring_files import load

from pagefall.config import ServeConfig
from pagefall.router.config import RouterConfig
from pagefall.router.workers_file import parse_workers

MANIFESTS: Final = kubernetes()
VERSIONS: Final = ("1.27", "1.30", kubernetes_validate.latest_version())
PODS: Final[dict[str, Any]] = {
    name: document["spec"]["template"]
    for (kind, name), document in MANIFESTS.items()
    if kind in ("StatefulSet", "Deployment")
}
CONFIG: Final[dict[str, str]] = MANIFESTS["ConfigMap", "pagefall"]["data"]


def container(name: str) -> dict[str, Any]:
    [only] = PODS[name]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """The ConfigMap as a folder."""
    for name, text in CONFIG.items():
        (tmp_path / name).write_text(text.replace("/etc/pagefall", str(tmp_path)))
    return tmp_path


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_is_valid_and_has_no_field_that_is_unknown(version: str) -> None:
    for document in MANIFESTS.values():
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    document = MANIFESTS["Service", "pagefall"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document | {"spec": {"selectors": {}}}, VERSIONS[-1], strict=True)


def test_the_kustomization_applies_every_file() -> None:
    kustomization = load(DOCKER / "kubernetes" / "kustomization.yaml")
    files = {path.name for path in (DOCKER / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    assert {image["name"] for image in kustomization["images"]} == {container("worker")["image"]}
    namespaced = [document for (kind, _), document in MANIFESTS.items() if kind != "Namespace"]
    assert {document["metadata"]["namespace"] for document in namespaced} == {kustomization["namespace"]}


@pytest.mark.parametrize(("name", "kind"), [("worker", ServeConfig), ("router", RouterConfig)])
def test_the_program_takes_its_flags_and_listens_where_it_is_probed(name: str, kind: type, configured: Path) -> None:
    arguments = [word.replace("/etc/pagefall", str(configured)) for word in container(name)["args"]]
    config = parsed(arguments)
    assert isinstance(config, kind)
    [port] = container(name)["ports"]
    assert (config.http.host, config.http.port) == ("0.0.0.0", port["containerPort"])


def test_the_workers_store_is_the_redis_of_the_manifests(configured: Path) -> None:
    config = parsed(["serve", "--config", str(configured / "worker.toml")])
    assert isinstance(config, ServeConfig)
    check_store(config)
    [port] = MANIFESTS["Service", "redis"]["spec"]["ports"]
    assert f"redis://redis:{port['port']}/" in str(config.tiers.hicache_storage_backend_extra_config)


def test_the_router_is_told_of_every_worker(configured: Path) -> None:
    config = parsed(["router", "--config", str(configured / "router.toml")])
    assert isinstance(config, RouterConfig)
    assert config.workers.workers_file == str(configured / "workers")
    workers = MANIFESTS["StatefulSet", "worker"]
    service, namespace = workers["spec"]["serviceName"], workers["metadata"]["namespace"]
    assert [spec.worker_id for spec in parse_workers(CONFIG["workers"].encode())] == [
        f"http://worker-{number}.{service}.{namespace}.svc:30000" for number in range(workers["spec"]["replicas"])
    ]
    assert MANIFESTS["Service", service]["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("name", sorted(PODS))
def test_a_pod_passes_the_restricted_standard_of_its_namespace(name: str) -> None:
    enforced = MANIFESTS["Namespace", "pagefall"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == "restricted"
    pod, own = PODS[name]["spec"]["securityContext"], container(name)["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert PODS[name]["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", ["worker", "router"])
def test_servers_run_as_the_user_of_the_image_and_write_only_to_volumes(name: str) -> None:
    [user] = [each for each in dockerfile() if each.name == "USER"]
    pod = PODS[name]["spec"]
    assert user.value == f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    mounted = {mount["mountPath"] for mount in container(name)["volumeMounts"]}
    assert {"/tmp", "/var/lib/pagefall/models", "/etc/pagefall"} <= mounted
    claims = MANIFESTS["StatefulSet", "worker"]["spec"]["volumeClaimTemplates"] if name == "worker" else []
    declared = {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"] for claim in claims}
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == declared


@pytest.mark.parametrize("name", ["worker", "router"])
def test_a_server_is_probed_for_being_ready_and_for_being_alive_and_may_drain(name: str) -> None:
    found = container(name)
    assert found["readinessProbe"]["httpGet"]["path"] == "/health"
    assert found["livenessProbe"]["httpGet"]["path"] == "/health/live"
    startup = found["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    before = int(found["lifecycle"]["preStop"]["exec"]["command"][1])
    # A router has no store to write to: what it waits for is its answers.
    drain = DRAIN_SECONDS if name == "worker" else parsed(["router"]).http.shutdown_grace_seconds
    assert PODS[name]["spec"]["terminationGracePeriodSeconds"] > before + drain


def test_every_selector_selects_the_pods_of_its_own_kind() -> None:
    labels = {name: set(pod["metadata"]["labels"].items()) for name, pod in PODS.items()}
    selected = {
        (kind, name): {
            pod
            for pod, has in labels.items()
            if set((spec["selector"].get("matchLabels") or spec["selector"]).items()) <= has
        }
        for (kind, name), document in MANIFESTS.items()
        if "selector" in (spec := document.get("spec", {}))
    }
    assert selected == {
        ("Service", "workers"): {"worker"},
        ("StatefulSet", "worker"): {"worker"},
        ("PodDisruptionBudget", "worker"): {"worker"},
        ("Service", "pagefall"): {"router"},
        ("Deployment", "router"): {"router"},
        ("PodDisruptionBudget", "router"): {"router"},
        ("Service", "redis"): {"redis"},
        ("Deployment", "redis"): {"redis"},
    }


def test_only_workers_reach_the_store() -> None:
    spec = MANIFESTS["NetworkPolicy", "redis"]["spec"]
    assert spec["podSelector"]["matchLabels"].items() <= PODS["redis"]["metadata"]["labels"].items()
    [rule] = spec["ingress"]
    [peer] = rule["from"]
    assert peer["podSelector"]["matchLabels"] == PODS["worker"]["metadata"]["labels"]


def test_keys_come_from_a_secret_that_the_guide_makes() -> None:
    guide = (REPOSITORY / "docs" / "deploy.md").read_text()
    for name in ("worker", "router"):
        for variable in container(name)["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference is not None:
                assert f"create secret generic {reference['name']}" in guide
                assert f"--from-literal={reference['key']}=" in guide, variable


def test_redis_has_more_memory_than_its_pages_may_take() -> None:
    arguments = container("redis")["args"]
    maxmemory = num_bytes(arguments[arguments.index("--maxmemory") + 1])
    assert num_bytes(container("redis")["resources"]["limits"]["memory"]) >= maxmemory + 2**29
    assert arguments[arguments.index("--maxmemory-policy") + 1] == "allkeys-lru"
