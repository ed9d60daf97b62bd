"""The servers under load: running ones, and one of our own."""

from __future__ import annotations

import resource
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import anyio
import httpx

from pagefall.bench.load.client import Endpoint, LoadClient, connect
from pagefall.bench.load.samples import Answer, RequestFailedError
from pagefall.bench.load.texts import Texts, words
from pagefall.bench.load.turns import Preparation, Turn
from pagefall.bench.server_process import served
from pagefall.bench.transfers import settled
from pagefall.errors import PagefallError

_SETTLE_SECONDS: Final = 1.0
_READY_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.2
_WARM_UP_WORDS: Final = 128
_WARM_UP_OUTPUT_TOKENS: Final = 4
_WARM_UP_CONCURRENCY: Final = 4


class Restart(Protocol):
    async def __call__(self, http: httpx.AsyncClient) -> None:
        """Restarts the server behind `http`, whose base URL is the new one's then."""


class TargetServer:
    """One server with the words of one run: what the driver sends to."""

    def __init__(self, client: LoadClient, *, seed: int, restart: Restart | None) -> None:
        self._client = client
        self._texts = Texts(seed=seed, tokens_per_word=client.tokens_per_word)
        self._restart = restart

    @property
    def num_template_tokens(self) -> int:
        return self._client.num_template_tokens

    def body(self, turn: Turn, answers: Mapping[int, str]) -> bytes:
        return self._client.body(turn, self._texts, answers)

    async def stream(self, body: bytes, *, on_token: Callable[[], object]) -> Answer:
        return await self._client.stream(body, on_token=on_token)

    async def prepare(self, preparation: Preparation) -> None:
        """Raises `PagefallError` when the server does not come back."""
        await settle(self._client.http)
        if preparation == "restart":
            assert self._restart is not None, "planned without one"
            await self._restart(self._client.http)
            await _wait_until_ready(self._client.http)


async def settle(http: httpx.AsyncClient) -> None:
    """Until no page moves between the server's tiers; of a server that does not say, a second."""
    try:
        await settled(http)
    except PagefallError:
        await anyio.sleep(_SETTLE_SECONDS)


@asynccontextmanager
async def open_client(
    url: str, *, model: str | None, api_key: str | None, endpoint: Endpoint, timeout_seconds: float, salt: int
) -> AsyncIterator[LoadClient]:
    """A client of the running server at `url`, with or without `/v1`. Raises `PagefallError` when it cannot be used."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    _raise_file_limit()
    try:
        http = httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1"),
            headers=headers,
            timeout=httpx.Timeout(timeout_seconds, connect=10, pool=None),
            limits=httpx.Limits(),
        )
    except httpx.InvalidURL as error:
        raise PagefallError(f"{url}: {error}") from error
    async with http:
        yield await connect(http, model=model, endpoint=endpoint, limit_seconds=timeout_seconds, salt=salt)


async def warm_up(client: LoadClient, num_requests: int, salt: int) -> None:
    """Requests that are no part of any figure. Raises `PagefallError` when one fails."""
    places = anyio.Semaphore(_WARM_UP_CONCURRENCY)

    async def one(number: int) -> None:
        async with places:
            text = words(salt, f"warm-up {number}", _WARM_UP_WORDS)
            await client.stream(client.text_body(text, _WARM_UP_OUTPUT_TOKENS))

    try:
        async with anyio.create_task_group() as group:
            for number in range(num_requests):
                group.start_soon(one, number)
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[0]
        if isinstance(failure, RequestFailedError):
            raise PagefallError(f"{client.http.base_url}: warm-up: {failure.fault.message}") from failure
        raise failure from None


class OwnServer:
    """A `pagefall serve` of ours. Its store, if its flags name no other place, outlives its restarts."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._flags = tuple(flags)
        self._run = AsyncExitStack()
        self._store = tempfile.TemporaryDirectory(prefix="pagefall-store-")

    async def start(self) -> str:
        """Its URL, once it is ready. Raises `PagefallError` when it does not start."""
        environ = {"PAGEFALL_STORAGE_DIR": self._store.name}
        return await self._run.enter_async_context(served(self._flags, environ))

    async def restart(self, http: httpx.AsyncClient) -> None:
        await self._run.aclose()
        http.base_url = await self.start()

    async def aclose(self) -> None:
        try:
            await self._run.aclose()
        finally:
            self._store.cleanup()


class CommandRestart:
    """Restarts somebody else's server by a command of a shell, which returns when the former process has ended."""

    def __init__(self, command: str) -> None:
        self._command = command

    async def __call__(self, http: httpx.AsyncClient) -> None:
        with tempfile.TemporaryDirectory(prefix="pagefall-restart-") as folder:
            # A file, no pipe: a server that the command leaves behind would hold a pipe open.
            log = Path(folder) / "stderr"
            with log.open("wb") as stderr:
                process = await anyio.open_process(
                    self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
                )
                status = await process.wait()
            lines = log.read_text(errors="replace").strip().splitlines()
        if status != 0:
            raise PagefallError(f"--restart-command ended with status {status}: {lines[-1] if lines else 'no word'}")


async def _wait_until_ready(http: httpx.AsyncClient) -> None:
    try:
        with anyio.fail_after(_READY_SECONDS):
            while True:
                try:
                    if (await http.get("/v1/models")).is_success:
                        return
                except httpx.TransportError:
                    pass  # the port opens when the model is loaded
                await anyio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise PagefallError(f"{http.base_url}: not ready {_READY_SECONDS:.0f} s after its restart") from None


def _raise_file_limit() -> None:
    """As many connections as the system lets us have: the usual limit of 1,024 files is one preset's burst."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
