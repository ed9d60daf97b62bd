from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from pagefall.bench.load import servers
from pagefall.bench.load.client import LoadClient
from pagefall.bench.load.servers import CommandRestart, OwnServer, TargetServer, open_client, warm_up
from pagefall.errors import PagefallError

from .test_client import ScriptedServer
from .virtual_time import run_virtually

pytestmark = pytest.mark.anyio


async def test_an_own_server_is_restarted_on_the_same_store(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    stores: list[Path] = []

    @asynccontextmanager
    async def served(flags: Sequence[str], environ: Mapping[str, str]) -> AsyncIterator[str]:
        stores.append(Path(environ["PAGEFALL_STORAGE_DIR"]))
        log.append(f"start {' '.join(flags)}")
        yield f"http://127.0.0.1:{8000 + len(stores)}"
        log.append("end")

    monkeypatch.setattr(servers, "served", served)
    own = OwnServer(["--page-size", "16"])
    async with httpx.AsyncClient(base_url=await own.start()) as http:
        assert stores[0].is_dir()
        await own.restart(http)
        assert str(http.base_url) == "http://127.0.0.1:8002"
        await own.aclose()
    assert log == ["start --page-size 16", "end"] * 2
    assert stores[0] == stores[1]
    assert not stores[0].exists()


async def test_a_restart_is_a_command_of_a_shell(tmp_path: Path) -> None:
    marker = tmp_path / "restarted"
    async with httpx.AsyncClient() as http:
        await CommandRestart(f"echo noise; touch {marker} && true")(http)
        assert marker.exists()
        with pytest.raises(PagefallError, match="--restart-command ended with status 3: no word"):
            await CommandRestart("exit 3")(http)


async def test_what_is_no_url_is_named() -> None:
    for url in ("http://[", "ftp://there", "there"):
        with pytest.raises(PagefallError, match=r"^\S+: "):
            async with open_client(url, model=None, api_key=None, endpoint="completions", timeout_seconds=1.0, salt=0):
                pass


def test_a_server_that_does_not_come_back_is_not_waited_for_for_ever() -> None:
    def down(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async def stay_down(http: httpx.AsyncClient) -> None:
        """Restarts nothing."""

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(down), base_url="http://there") as http:
            client = LoadClient(http, model="m", endpoint="completions", fields={}, limit_seconds=1.0)
            server = TargetServer(client, seed=0, restart=stay_down)
            with pytest.raises(PagefallError, match="http://there: not ready 300 s after its restart"):
                await server.prepare("restart")

    run_virtually(run)


def test_a_warm_up_that_fails_is_named() -> None:
    async def run() -> None:
        transport = httpx.MockTransport(ScriptedServer(refuses=lambda _: 500))
        async with httpx.AsyncClient(transport=transport, base_url="http://there") as http:
            client = LoadClient(http, model="m", endpoint="completions", fields={}, limit_seconds=1.0)
            with pytest.raises(PagefallError, match=r"http://there.*: warm-up: status 500: no such thing"):
                await warm_up(client, 3, 0)

    run_virtually(run)
