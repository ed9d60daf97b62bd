from __future__ import annotations

import io
from collections.abc import Iterator

import anyio

from pagefall.bench.load.driver import ClosedLoop, Driver, Limits
from pagefall.bench.load.lag import LagMeter
from pagefall.bench.load.progress import Progress, progress_line
from pagefall.bench.load.turns import Session

from .samples import failed_sample, sample
from .test_driver import ScriptedServer
from .virtual_time import run_virtually


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def follow(stream: io.StringIO, seconds: float) -> str:
    async def run() -> None:
        progress = Progress(stream)
        with anyio.move_on_after(seconds):
            await progress.follow(lambda: f"at {anyio.current_time():g}")
        progress.say("done")

    run_virtually(run)
    return stream.getvalue()


def test_a_terminal_has_one_line_that_changes() -> None:
    assert follow(Terminal(), 1.2) == "\r\x1b[Kat 0.5\r\x1b[Kat 1\r\x1b[Kdone\n"


def test_a_file_has_a_line_every_ten_seconds() -> None:
    assert follow(io.StringIO(), 25) == "at 10\nat 20\ndone\n"


def no_sessions() -> Iterator[Session]:
    return iter(())


def test_the_line_says_how_it_goes() -> None:
    async def run() -> list[str]:
        driver = Driver(ScriptedServer(), no_sessions(), ClosedLoop(concurrency=1), Limits())
        lines = [progress_line(driver, heading="self", total=10, seconds=0.0)]
        driver.samples += [sample(), sample(ttft_seconds=0.4), failed_sample()]
        driver.num_sent = 5
        driver.num_streaming = 1
        return [*lines, progress_line(driver, heading="self", total=None, seconds=2.0)]

    assert run_virtually(run) == [
        "self: 0/10 done, 0 running (0 streaming), 0 failed, 0 s",
        "self: 3 done, 2 running (1 streaming), 1 failed, 1.5 req/s, TTFT p50 300 ms, hit rate 64%, 2 s",
    ]


def test_a_busy_loop_is_seen_in_its_own_lag() -> None:
    async def run() -> LagMeter:
        meter = LagMeter()
        assert meter.result() is None
        with anyio.move_on_after(1.0):
            await meter.measure()
        return meter

    meter = run_virtually(run)
    punctual = meter.result()
    assert punctual is not None
    assert punctual.max_seconds < 1e-9
    meter.note(0.5)
    late = meter.result()
    assert late is not None
    assert (late.p50_seconds < 1e-9, late.max_seconds) == (True, 0.5)
