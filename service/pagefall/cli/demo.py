"""`pagefall demo`: its flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagefall.bench.demo_plan import DemoConfig
from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.cli.parser import build_config, parse_arguments

DEMO_FLAGS = FlagTable(
    program="pagefall demo",
    summary="Start a server on small pools, send it one document, cold and from each tier, and show the difference.",
    groups=(
        Group(
            "Demo",
            "",
            DemoConfig,
            (
                Flag("out", "folder for demo.json and demo.png", "DIR"),
                Flag("prompt-tokens", "length of the documents, about", minimum=512),
                Flag("max-total-tokens", "size of the device pool in tokens", minimum=1),
                Flag("hicache-ratio", "size of the host pool as a multiple of the device pool", above=0),
                Flag("serve-flags", "further flags of the server, as one word", "FLAGS"),
            ),
        ),
    ),
)


def parse_demo(argv: Sequence[str], environ: Mapping[str, str]) -> DemoConfig:
    """The configuration of `pagefall demo`. Raises `ConfigError`."""
    config: DemoConfig = build_config(DEMO_FLAGS, DemoConfig, parse_arguments(DEMO_FLAGS, argv, environ))
    return config
