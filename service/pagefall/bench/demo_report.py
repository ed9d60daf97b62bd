"""The demo's rows: the table for people, the JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pagefall.bench.demo_plan import DemoConfig, Source, source
from pagefall.bench.report import align
from pagefall.bench.transfers import MovedBytes
from pagefall.messages import Tier

_ARROWS = {
    "device_to_host": "device→host",
    "host_to_device": "host→device",
    "host_to_storage": "host→storage",
    "storage_to_host": "storage→host",
}


class DemoRow(msgspec.Struct, frozen=True, kw_only=True):
    """One case as it was measured. `moved_bytes`: between the tiers, until nothing moved any more."""

    case: str
    wanted: Source
    ttft_seconds: float
    num_prompt_tokens: int
    cached_tokens_by_tier: dict[Tier, int]
    moved_bytes: MovedBytes

    @property
    def served_by(self) -> Source:
        return source(self.num_prompt_tokens, self.cached_tokens_by_tier)

    @property
    def is_as_wanted(self) -> bool:
        return self.served_by == self.wanted


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured; the first row is the cold one."""

    config: DemoConfig
    model: str
    rows: tuple[DemoRow, ...]

    def speed_up(self, row: DemoRow) -> float:
        """How many times the row's TTFT goes into the cold one's."""
        return self.rows[0].ttft_seconds / row.ttft_seconds


def demo_table(result: DemoResult) -> str:
    """One line a case, then one for each case that another tier served than the one it should show."""
    rows = [["", "TTFT", "speed-up", "device", "host", "storage", "computed", "MB moved"]]
    for row in result.rows:
        by_tier = [row.cached_tokens_by_tier.get(tier, 0) for tier in ("device", "host", "storage")]
        tokens = [*by_tier, row.num_prompt_tokens - sum(by_tier)]
        rows.append(
            [
                row.case,
                seconds_text(row.ttft_seconds),
                f"{result.speed_up(row):.1f}x",
                *(f"{count:,}" for count in tokens),
                _moved(row.moved_bytes),
            ]
        )
    wrong = [f"NOT SHOWN: {row.case}: {row.wanted} expected, was {row.served_by}" for row in wrong_rows(result.rows)]
    return "\n".join([*align(rows), *wrong]) + "\n"


def wrong_rows(rows: Sequence[DemoRow]) -> list[DemoRow]:
    return [row for row in rows if not row.is_as_wanted]


def demo_json(result: DemoResult) -> bytes:
    document = {
        "config": result.config,
        "model": result.model,
        "rows": [
            {
                **msgspec.structs.asdict(row),
                "served_by": row.served_by,
                "is_as_wanted": row.is_as_wanted,
                "speed_up": result.speed_up(row),
            }
            for row in result.rows
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _moved(moved: MovedBytes) -> str:
    parts = [f"{_ARROWS[direction]} {num_bytes / 1e6:.0f}" for direction, num_bytes in moved.items() if num_bytes]
    return ", ".join(parts) or "-"
