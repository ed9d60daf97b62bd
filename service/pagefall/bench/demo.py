"""`pagefall demo`: one document, cold, then from each tier in turn, then after a restart; a table, a JSON, a chart."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
from tqdm import tqdm

from pagefall.bench.client import CompletionClient, Trace
from pagefall.bench.demo_plan import CASES, DemoConfig, check_sizes, fillers, lifetimes
from pagefall.bench.demo_report import DemoResult, DemoRow, demo_json, demo_table, wrong_rows
from pagefall.bench.documents import ships_log
from pagefall.bench.server_process import run_until_ended, served
from pagefall.bench.targets import open_url, split_flags
from pagefall.bench.transfers import MovedBytes, difference, settled
from pagefall.errors import ConfigError, PagefallError


def demo(config: DemoConfig) -> int:
    """Runs the demo; 1 if a row was served by another tier than the one it should show, else 0.

    Writes `demo.json`, and `demo.png` if matplotlib is there, into the folder `config.out`. Raises `ConfigError` for
    sizes that cannot show the tiers and `PagefallError` when the server fails.
    """
    check_sizes(config)
    try:
        out = Path(config.out)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: {config.out}: {error.strerror}") from error
    result = run_until_ended(_measure, config)
    sys.stdout.write(f"\n{demo_table(result)}\n")
    write_files(result, out)
    return 1 if wrong_rows(result.rows) else 0


def write_files(result: DemoResult, out: Path) -> None:
    """The JSON always, the chart where it can be drawn; says where they are."""
    (out / "demo.json").write_bytes(demo_json(result))
    sys.stdout.write(f"{out / 'demo.json'}\n")
    try:
        from pagefall.bench.demo_chart import write_chart
    except ModuleNotFoundError:
        sys.stdout.write("no chart: it needs matplotlib, pip install 'pagefall[demo]'\n")
        return
    write_chart(result, out / "demo.png")
    sys.stdout.write(f"{out / 'demo.png'}\n")


async def _measure(config: DemoConfig) -> DemoResult:
    rng = random.SystemRandom()
    num_steps = len(CASES) + sum(len(fillers(case.before, config)) for case in CASES)
    rows: list[DemoRow] = []
    model = ""
    with (
        tempfile.TemporaryDirectory(prefix="pagefall-demo-") as store,
        # disable=None: a bar is for terminals.
        tqdm(total=num_steps, bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt}", disable=None) as bar,
    ):
        documents: list[str] = []
        for cases in lifetimes(CASES):
            bar.set_description("starting the server")
            async with _server(config, Path(store)) as client:
                model = client.model
                documents = documents or await _documents(client, config, rng)
                for case in cases:
                    bar.set_description(f"making room: {case.name}")
                    for num_tokens in fillers(case.before, config):
                        await client.stream(client.prompts.make(num_tokens), max_tokens=1)
                        bar.update()
                    bar.set_description(case.name)
                    trace, moved = await _show(client, documents[case.document])
                    rows.append(
                        DemoRow(
                            case=case.name,
                            wanted=case.wanted,
                            ttft_seconds=trace.ttft_seconds,
                            num_prompt_tokens=trace.num_prompt_tokens or 0,
                            cached_tokens_by_tier=trace.cached_tokens_by_tier or {},
                            moved_bytes=moved,
                        )
                    )
                    bar.update()
        bar.set_description("done")
    return DemoResult(config=config, model=model, rows=tuple(rows))


@asynccontextmanager
async def _server(config: DemoConfig, store: Path) -> AsyncIterator[CompletionClient]:
    """A server on small pools, with `store` under them. When it is left, nothing moves any more and it ends."""
    extra = msgspec.json.encode({"path": str(store)}).decode()
    flags = [
        *("--max-total-tokens", str(config.max_total_tokens)),
        "--enable-hierarchical-cache",
        *("--hicache-ratio", str(config.hicache_ratio)),
        *("--hicache-storage-backend", "file"),
        *("--hicache-storage-backend-extra-config", extra),
        *split_flags("serve-flags", config.serve_flags),
    ]
    async with served(flags, {}) as url, open_url(url, random.SystemRandom()) as client:
        yield client
        await settled(client.http)


async def _documents(client: CompletionClient, config: DemoConfig, rng: random.Random) -> list[str]:
    """Two documents of about `prompt_tokens` tokens by the server's own count."""
    # As long as the documents, nearly: the longer the voyage, the more digits in its numbers.
    sample = ships_log(rng, num_words=config.prompt_tokens // 2)
    try:
        response = await client.http.post("/tokenize", json={"prompt": sample})
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise PagefallError(f"the server cannot count tokens: {error or type(error).__name__}") from error
    tokens_per_word = response.json()["count"] / len(sample.split())
    return [ships_log(rng, num_words=int(config.prompt_tokens / tokens_per_word)) for _ in range(2)]


async def _show(client: CompletionClient, document: str) -> tuple[Trace, MovedBytes]:
    """The answer's trace, and what moved between the tiers for it."""
    before = await settled(client.http)
    trace = await client.stream(document, max_tokens=1)
    return trace, difference(await settled(client.http), before)
