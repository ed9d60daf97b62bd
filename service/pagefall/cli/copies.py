"""`pagefall bench copies`: its flags. Apart from the other benchmarks', which do without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagefall.bench.copies import CopiesBenchConfig
from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.cli.parser import build_config, parse_arguments

COPIES_FLAGS = FlagTable(
    program="pagefall bench copies",
    summary="Time copies of pages between a CPU's device pool and the host pool against memcpy, without a model.",
    groups=(
        Group(
            "Measurements",
            "",
            CopiesBenchConfig,
            (
                Flag("num-pages", "pages in each copy", minimum=1),
                Flag("run-pages", "how many of them follow each other in both pools, with commas", "N,N", minimum=1),
                Flag("repeats", "how often each copy is timed", minimum=1),
            ),
        ),
        Group(
            "Pages",
            "",
            CopiesBenchConfig,
            (
                Flag("num-layers", "layers of the model", minimum=1),
                Flag("num-kv-heads", "heads of keys in a layer, and of values", minimum=1),
                Flag("head-dim", "width of a head", minimum=1),
                Flag("page-size", "token slots in a page", minimum=1),
            ),
        ),
    ),
)


def parse_copies(argv: Sequence[str], environ: Mapping[str, str]) -> CopiesBenchConfig:
    """The configuration of `pagefall bench copies`. Raises `ConfigError`."""
    config: CopiesBenchConfig = build_config(
        COPIES_FLAGS, CopiesBenchConfig, parse_arguments(COPIES_FLAGS, argv, environ)
    )
    return config
