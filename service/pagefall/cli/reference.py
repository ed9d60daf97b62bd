"""The reference pages of commands, docs/flags.md and docs/router-flags.md, written from flag tables: `make docs`."""

from __future__ import annotations

import sys

from pagefall.cli.flags import FlagTable, options
from pagefall.cli.router import ROUTER_FLAGS
from pagefall.cli.serve_flags import SERVE_FLAGS


def render_reference(table: FlagTable, *, source: str = "service/pagefall/cli/serve_flags.py") -> str:
    """All flags of `table`, which is in `source`, as a Markdown page."""
    known = options(table)
    lines = [
        f"# Flags of `{table.program}`",
        "",
        f"Written by `make docs` from `{source}`; edit that file, not this one.",
        "A flag wins over its environment variable, that over the `--config` file, and that over the default.",
        "",
    ]
    lines += [f"- `--{flag.name} {flag.metavar}`: {flag.help}" for flag in table.command_flags]
    for group in table.groups:
        lines += ["", f"## {group.title}", "", f"TOML table `[{group.part}]`.", ""]
        lines += ["| flag | value | default | meaning |", "|---|---|---|---|"]
        for flag in group.flags:
            option = known[flag.name]
            value = " ".join(f"`{c}`" for c in option.choices) or ("" if option.type is bool else f"`{option.metavar}`")
            environ = f"; also `{flag.environ}`" if flag.environ else ""
            cells = [f"`--{flag.name}`", value, f"`{option.default_text}`" if option.default_text else "", flag.help]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + environ + " |")
    if table.always_on:
        lines += ["", "## Always on", "", "Accepted so that existing commands work; they change nothing.", ""]
        lines += [f"- `--{flag.name}`: {flag.help}" for flag in table.always_on]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            sys.stdout.write(render_reference(SERVE_FLAGS))
        case ["router"]:
            sys.stdout.write(render_reference(ROUTER_FLAGS, source="service/pagefall/cli/router.py"))
        case others:
            sys.exit(f"unknown: {' '.join(others)}; give nothing, or router")
