"""`pagefall bench transfers`: its flags. Apart from the other benchmarks', which do without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagefall.bench.store_transfers import TransfersBenchConfig
from pagefall.cli.bench_store import STORE_FLAGS, resolve_store
from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.cli.parser import build_config, parse_arguments

TRANSFERS_FLAGS = FlagTable(
    program="pagefall bench transfers",
    summary="Time pages between host memory and a store, and how late the event loop is meanwhile, without a model.",
    groups=(
        Group(
            "Measurements",
            "",
            TransfersBenchConfig,
            (
                *STORE_FLAGS,
                Flag("num-pages", "pages to write and to read", minimum=1),
                Flag("page-bytes", "size of a page", minimum=1),
                Flag("num-requests", "how many read at a time", minimum=1),
                Flag("repeats", "how often", minimum=1),
            ),
        ),
    ),
)


def parse_transfers(argv: Sequence[str], environ: Mapping[str, str]) -> TransfersBenchConfig:
    """The configuration of `pagefall bench transfers`. Raises `ConfigError`."""
    given = resolve_store(parse_arguments(TRANSFERS_FLAGS, argv, environ))
    config: TransfersBenchConfig = build_config(TRANSFERS_FLAGS, TransfersBenchConfig, given)
    return config
