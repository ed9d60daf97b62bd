"""The workers' metrics as one text: each sample with its worker's name, each family once, as Prometheus wants it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{\s*(.*)\})?(\s.*)", re.DOTALL)
"""A name, labels that may have any text in them, and a value; perhaps a time after it."""

_HEADER: Final = re.compile(r"# (HELP|TYPE) (\S+)")


class _Family:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        """HELP and TYPE, as the first worker says them."""
        self.samples: list[str] = []


def merged_metrics(texts: Mapping[str, str]) -> str:
    """`texts` in Prometheus' text format (0.0.4), by the names of workers. What is no line of that format is left out.

    Families come in the order in which they are first seen, and of each the workers in the order of `texts`.
    """
    families: dict[str, _Family] = {}
    for worker, text in texts.items():
        _add(families, worker, text)
    lines: list[str] = []
    for family in families.values():
        if family.samples:
            lines += (*(family.headers[kind] for kind in ("HELP", "TYPE") if kind in family.headers), *family.samples)
    return "".join(f"{line}\n" for line in lines)


def _add(families: dict[str, _Family], worker: str, text: str) -> None:
    current = ""
    for line in text.split("\n"):
        if header := _HEADER.match(line):
            kind, current = header[1], header[2]
            families.setdefault(current, _Family()).headers.setdefault(kind, line)
        elif sample := _SAMPLE.fullmatch(line):
            name, labels, value = sample.groups()
            # A histogram's and a summary's samples have longer names than their family.
            family = families.setdefault(current if current and name.startswith(current) else name, _Family())
            more = f",{labels}" if labels else ""
            family.samples.append(f'{name}{{worker="{worker}"{more}}}{value}')
