"""`--dp-size`: what each worker is told."""

from __future__ import annotations

import os

import pytest

from pagefall.cli import data_parallel
from pagefall.cli.data_parallel import worker_command, worker_environ
from pagefall.cli.serve import parse_serve
from pagefall.errors import ConfigError


def command(*argv: str, number: int = 1, **environ: str) -> list[str]:
    return worker_command(argv, environ, parse_serve(argv, {}), number, 5555)[4:]


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "_num_gpus", lambda: 0)


def test_a_worker_gets_the_users_flags_but_those_of_the_router() -> None:
    ours = ["--dp-size=2", "--host", "0.0.0.0", "--api-key", "k", "--port=8000"]
    assert command(*ours[:3], "--page-size", "32", *ours[3:], "--max-total-tokens", "4096") == [
        *("--page-size", "32", "--max-total-tokens", "4096"),
        *("--dp-size", "1", "--host", "127.0.0.1", "--port", "5555"),
    ]


def test_a_method_of_balancing_is_the_routers() -> None:
    flags = command("--dp-size", "2", "--load-balance-method", "round_robin", "--max-total-tokens", "64")
    assert flags[:3] == ["--max-total-tokens", "64", "--dp-size"]


def test_workers_that_share_a_memory_share_the_part_of_it_that_may_be_used() -> None:
    assert command("--dp-size", "4", "--mem-fraction-static", "0.8")[-2:] == ["--mem-fraction-static", "0.2000"]
    assert command("--dp-size", "3")[-2:] == ["--mem-fraction-static", "0.1000"]


def test_the_share_is_that_of_the_device_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "_num_gpus", lambda: 2)
    assert "--mem-fraction-static" not in command("--dp-size", "2")
    assert command("--dp-size", "2", "--device", "cpu")[-1] == "0.1500"
    assert [command("--dp-size", "3", number=number)[-1] for number in (0, 2)] == ["0.4400", "0.4400"]
    assert "--mem-fraction-static" not in command("--dp-size", "3", number=1)
    assert command("--dp-size", "4", "--mem-fraction-static", "0.8")[-1] == "0.4000"
    assert command("--dp-size", "2", CUDA_VISIBLE_DEVICES="1")[-1] == "0.4400"
    assert command("--dp-size", "2", CUDA_VISIBLE_DEVICES="")[-1] == "0.1500"
    assert "CUDA_VISIBLE_DEVICES" not in worker_environ({}, parse_serve(["--device", "cpu"], {}), 0, "s")


def test_cores_are_divided_and_gpus_dealt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_serve(["--dp-size", "2"], {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    environ = worker_environ({"PATH": "/bin"}, config, 1, "secret")
    assert environ["OMP_NUM_THREADS"] == "4"
    assert environ["PAGEFALL_API_KEY"] == environ["PAGEFALL_ADMIN_API_KEY"] == "secret"
    assert "CUDA_VISIBLE_DEVICES" not in environ
    assert worker_environ({"OMP_NUM_THREADS": "1"}, config, 1, "s")["OMP_NUM_THREADS"] == "1"
    monkeypatch.setattr(data_parallel, "_num_gpus", lambda: 2)
    assert worker_environ({}, config, 1, "s")["CUDA_VISIBLE_DEVICES"] == "1"
    assert worker_environ({"CUDA_VISIBLE_DEVICES": "4,5"}, config, 0, "s")["CUDA_VISIBLE_DEVICES"] == "4"


def test_a_method_without_workers_to_balance_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--load-balance-method.*--dp-size"):
        parse_serve(["--load-balance-method", "round_robin"], {})
