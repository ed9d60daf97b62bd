"""The registry, without a socket and without a clock."""

from __future__ import annotations

import logging

import pytest

from pagefall.errors import RequestError
from pagefall.router.config import WorkersConfig
from pagefall.router.worker_urls import worker_spec
from pagefall.router.workers import Worker, WorkerRegistry

pytestmark = pytest.mark.anyio


class Heard:
    def __init__(self) -> None:
        self.events: list[str] = []

    def added(self, worker: Worker) -> None:
        self.events.append(f"added {worker.name}")

    def ready(self, worker: Worker) -> None:
        self.events.append(f"ready {worker.name}")

    def lost(self, worker: Worker) -> None:
        self.events.append(f"lost {worker.name}")

    def removed(self, worker: Worker) -> None:
        self.events.append(f"removed {worker.name}")


class Rig:
    def __init__(self, *, healthy: int = 2) -> None:
        self.now = 0.0
        config = WorkersConfig(health_failures=2, health_successes=2, breaker_failures=2, breaker_open_seconds=1)
        self.registry = WorkerRegistry(config, clock=lambda: self.now)
        self.heard = Heard()
        self.registry.listen(self.heard)
        self.workers = [self.registry.add(worker_spec(f"http://host{index}:1"), "flag") for index in range(healthy)]
        for worker in self.workers:
            self.registry.probe_succeeded(worker)
        self.heard.events.clear()

    def names(self, *tried: Worker, model: str | None = None) -> list[str]:
        found = self.registry.candidates({worker.worker_id for worker in tried}, model=model)
        return [worker.name for worker in found]

    def fail(self, worker: Worker, times: int) -> None:
        for _ in range(times):
            self.registry.lease(worker, num_prefill_tokens=0).end("server_error")


async def test_a_worker_is_joining_until_a_probe_succeeds() -> None:
    rig = Rig(healthy=0)
    worker = rig.registry.add(worker_spec("http://a:1/v1/", "mine"), "api")
    assert (worker.worker_id, worker.name, worker.state, rig.names()) == ("http://a:1", "mine", "joining", [])
    rig.registry.probe_succeeded(worker)
    assert (worker.state, rig.names()) == ("healthy", ["mine"])
    assert rig.heard.events == ["added mine", "ready mine"]


async def test_a_worker_whose_last_probe_failed_is_spared_at_once_and_unhealthy_after_some() -> None:
    rig = Rig()
    one, _ = rig.workers
    rig.registry.probe_failed(one, "silent", is_silent=True)
    assert (one.state, rig.names(), rig.heard.events) == ("healthy", ["w1"], [])
    rig.registry.probe_failed(one, "silent", is_silent=True)
    assert (one.state, one.trouble, rig.heard.events) == ("unhealthy", "silent", ["lost w0"])
    rig.registry.probe_succeeded(one)
    assert one.state == "unhealthy"
    rig.registry.probe_succeeded(one)
    assert (one.state, rig.names()) == ("healthy", ["w0", "w1"])


async def test_where_all_are_spared_all_are_asked() -> None:
    rig = Rig()
    one, other = rig.workers
    rig.fail(one, 2)
    assert (one.breaker.state, rig.names()) == ("open", ["w1"])
    assert rig.names(other) == ["w0"]
    rig.registry.probe_failed(other, "once", is_silent=True)
    assert rig.names() == ["w0", "w1"]


async def test_silence_gives_up_what_has_no_first_byte_and_a_refusal_gives_up_nothing() -> None:
    rig = Rig()
    silent, leaving = rig.workers
    waiting, begun, kept = (rig.registry.lease(w, num_prefill_tokens=0) for w in (silent, silent, leaving))
    begun.first_byte()
    for worker, is_silent in ((silent, True), (leaving, False)):
        for _ in range(2):
            rig.registry.probe_failed(worker, "trouble", is_silent=is_silent)
    assert (waiting.abandoned, begun.abandoned, kept.abandoned) == ("worker_lost", None, None)
    assert waiting.scope.cancel_called


async def test_a_refused_connection_is_enough() -> None:
    rig = Rig()
    rig.registry.connection_refused(rig.workers[0])
    assert (rig.workers[0].state, rig.names()) == ("unhealthy", ["w1"])


async def test_a_restarted_worker_begins_with_a_closed_breaker() -> None:
    rig = Rig()
    worker = rig.workers[0]
    rig.fail(worker, 2)
    rig.registry.connection_refused(worker)
    for _ in range(2):
        rig.registry.probe_succeeded(worker)
    assert (worker.state, worker.breaker.state) == ("healthy", "closed")


async def test_a_draining_worker_ends_what_it_has_gets_no_more_and_may_be_taken_back() -> None:
    rig = Rig()
    worker = rig.workers[0]
    lease = rig.registry.lease(worker, num_prefill_tokens=5)
    rig.registry.drain(worker)
    rig.registry.probe_succeeded(worker)
    lease.end("ok")
    assert (worker.state, rig.names(), rig.heard.events) == ("draining", ["w1"], [])
    assert rig.registry.add(worker_spec("http://host0:1"), "api") is worker
    rig.registry.probe_succeeded(worker)
    assert rig.names() == ["w0", "w1"]


async def test_a_removed_worker_is_gone_with_its_last_request() -> None:
    rig = Rig()
    worker = rig.workers[0]
    lease = rig.registry.lease(worker, num_prefill_tokens=0)
    rig.registry.remove(worker)
    assert rig.registry.get("w0") is worker
    assert lease.abandoned is None
    lease.end("ok")
    assert (worker.state, rig.registry.get("w0"), rig.heard.events) == ("removed", None, ["removed w0"])


async def test_a_worker_removed_at_once_gives_up_its_requests() -> None:
    rig = Rig()
    lease = rig.registry.lease(rig.workers[0], num_prefill_tokens=0)
    rig.registry.remove(rig.workers[0], at_once=True)
    assert (lease.abandoned, rig.registry.get("w0")) == ("removed", None)
    lease.end("worker_lost")  # late, and no harm
    assert rig.heard.events == ["removed w0"]


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_worker_that_is_gone_can_be_removed_again_and_stays_gone(at_once: bool) -> None:
    rig = Rig()
    worker = rig.workers[0]
    rig.registry.remove(worker)
    rig.registry.remove(worker, at_once=at_once)
    rig.registry.drain(worker)
    assert (worker.state, rig.heard.events) == ("removed", ["removed w0"])


async def test_a_worker_that_was_never_up_is_no_cause_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pagefall.router")
    rig = Rig(healthy=0)
    worker = rig.registry.add(worker_spec("http://a:1"), "flag")

    def told() -> list[tuple[str, str]]:
        return [
            (record.levelname, record.getMessage()) for record in caplog.records if "refused" in record.getMessage()
        ]

    for _ in range(5):
        rig.registry.probe_failed(worker, "refused", is_silent=True)
    assert (worker.state, told()) == ("unhealthy", [("INFO", "worker w0 is not up yet: refused")])
    for _ in range(2):
        rig.registry.probe_succeeded(worker)
    for _ in range(2):
        rig.registry.probe_failed(worker, "refused", is_silent=True)
    assert told()[1:] == [("WARNING", "worker w0 is unhealthy: refused")]


async def test_prefill_tokens_count_until_the_first_byte_once() -> None:
    rig = Rig()
    worker = rig.workers[0]
    first, second = (rig.registry.lease(worker, num_prefill_tokens=n) for n in (100, 50))
    assert (worker.view().num_outstanding, worker.view().num_outstanding_prefill_tokens) == (2, 150)
    assert (first.num_tokens_ahead, second.num_tokens_ahead) == (100, 150)
    first.prefilled()
    first.first_byte()
    assert worker.view().num_outstanding_prefill_tokens == 50
    first.end("ok")
    second.end("reset")
    assert (worker.view().num_outstanding, worker.view().num_outstanding_prefill_tokens) == (0, 0)


async def test_a_clients_leaving_says_nothing_of_the_worker_and_neither_does_what_it_does_not_know() -> None:
    rig = Rig()
    worker = rig.workers[0]
    for _ in range(9):
        rig.registry.lease(worker, num_prefill_tokens=0).end("client_gone")
        rig.registry.lease(worker, num_prefill_tokens=0).end("client_error")
        rig.registry.lease(worker, num_prefill_tokens=0).end("server_error", is_failure=False)
    assert worker.breaker.state == "closed"


async def test_a_model_is_asked_of_those_that_serve_it_and_of_all_where_none_does() -> None:
    rig = Rig()
    rig.workers[1].models = frozenset({"b"})
    assert rig.names(model="b") == ["w1"]
    assert rig.names(rig.workers[1], model="b") == ["w0"]
    assert rig.names(model="c") == ["w0", "w1"]


async def test_two_workers_have_two_names() -> None:
    rig = Rig(healthy=0)
    rig.registry.add(worker_spec("http://a:1", "w0"), "api")
    assert rig.registry.add(worker_spec("http://b:1"), "api").name == "w1"
    with pytest.raises(RequestError, match="Another worker is called 'w1'"):
        rig.registry.add(worker_spec("http://c:1", "w1"), "api")


@pytest.mark.parametrize(
    "url", ["", "host:1", "ftp://a", "http://", "http://a b", "http://u:p@a", "http://a?x=1", "http://a:99999"]
)
def test_what_is_no_workers_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="write it like http://host:port"):
        worker_spec(url)
