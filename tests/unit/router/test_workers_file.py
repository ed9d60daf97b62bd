from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pagefall.errors import ConfigError
from pagefall.router.config import WorkersConfig
from pagefall.router.worker_urls import worker_spec
from pagefall.router.workers import WorkerRegistry
from pagefall.router.workers_file import WorkersFile, parse_workers

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("http://a:1\n# no\n\n  http://b:2/v1 # yes\nhttp://a:1", [("http://a:1", None), ("http://b:2", None)]),
        ('["http://a:1", {"url": "http://b:2", "name": "b"}]', [("http://a:1", None), ("http://b:2", "b")]),
        ("[]", []),
    ],
)
def test_lines_and_json_name_workers(content: str, expected: list[tuple[str, str | None]]) -> None:
    assert [(spec.worker_id, spec.name) for spec in parse_workers(content.encode())] == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"# all\n# gone\n", "names no worker"),
        (b"http://a:1\nnonsense\n", "line 2: 'nonsense' is no worker's URL"),
        (b'["http://a:1", "x"]', "entry 1"),
        (b'[{"uri": "http://a:1"}]', "unknown field `uri`"),
        (b'["http://a:1"', "no JSON list"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_workers(content)


def names(registry: WorkerRegistry) -> list[str]:
    return [worker.worker_id for worker in registry.workers]


async def test_changes_of_the_file_apply_and_workers_from_elsewhere_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "workers"
    path.write_text("http://a:1\nhttp://b:1\n")
    registry = WorkerRegistry(WorkersConfig(), clock=lambda: 0.0)
    registry.add(worker_spec("http://flag:1"), "flag")
    file = WorkersFile(str(path), registry)
    file.read_first()
    assert names(registry) == ["http://flag:1", "http://a:1", "http://b:1"]
    busy = registry.get("http://b:1")
    assert busy is not None
    lease = registry.lease(busy, num_prefill_tokens=0)

    path.write_text("http://c:1\n")
    await file.look()
    assert names(registry) == ["http://flag:1", "http://b:1", "http://c:1"]
    assert busy.state == "draining"
    lease.end("ok")
    assert names(registry) == ["http://flag:1", "http://c:1"]

    with caplog.at_level(logging.WARNING):
        path.write_text("http://c:1\nhalf writ")
        await file.look()
        await file.look()
        path.unlink()
        await file.look()
    assert names(registry) == ["http://flag:1", "http://c:1"]
    assert len(caplog.records) == 2


async def test_what_an_operator_has_drained_the_file_does_not_take_back(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    path.write_text("http://a:1\n")
    registry = WorkerRegistry(WorkersConfig(), clock=lambda: 0.0)
    file = WorkersFile(str(path), registry)
    file.read_first()
    registry.drain(registry.workers[0])
    path.write_text("http://a:1\nhttp://b:1\n")
    await file.look()
    assert [worker.state for worker in registry.workers] == ["draining", "joining"]


def test_a_file_that_is_of_no_use_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--workers-file .*none: it cannot be read: no such file"):
        WorkersFile(str(tmp_path / "none"), WorkerRegistry(WorkersConfig(), clock=lambda: 0.0)).read_first()
