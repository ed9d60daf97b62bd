from __future__ import annotations

import signal
from typing import Any

import anyio
import pytest

from pagefall.bench.server_process import run_until_ended, served
from pagefall.errors import PagefallError


@pytest.mark.anyio
async def test_a_server_that_does_not_start_is_reported_with_its_last_words() -> None:
    with pytest.raises(PagefallError, match=r"the server did not start: --prot: unknown; did you mean --port"):
        async with served(["--prot", "1"], {}):
            pass


@pytest.mark.parametrize("interrupts", [signal.default_int_handler, signal.SIG_IGN])
def test_a_termination_ends_what_was_started_before_it_ends_the_command(
    interrupts: Any, request: pytest.FixtureRequest
) -> None:
    ended = []

    async def start(name: str) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            ended.append(name)

    before = signal.signal(signal.SIGINT, interrupts)  # a shell has a command in the background ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt):
        run_until_ended(start, "server")
    assert ended == ["server"]
