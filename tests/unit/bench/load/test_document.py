from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pagefall.bench.load.comparison import Compared
from pagefall.bench.load.config import LoadConfig, ServersConfig, TrafficConfig
from pagefall.bench.load.document import LoadDocument, TargetDocument, encode
from pagefall.bench.load.plan import Pace
from pagefall.bench.load.presets import PRESETS
from pagefall.bench.load.samples import Fault, LoopLag, RequestSample, Run
from pagefall.bench.load.shapes import SHAPES, RandomPrompts
from pagefall.bench.load.slo import Slo
from pagefall.bench.load.summary import Caching, Goodput, Part, Spread, Summary, summarise
from pagefall.cli.bench_load import LOAD_FLAGS

from .samples import failed_sample, run, sample

PAGE = (Path(__file__).parents[4] / "docs/bench.md").read_text()

DOCUMENTED = (
    LoadDocument,
    TargetDocument,
    Pace,
    Slo,
    Compared,
    Run,
    RequestSample,
    Fault,
    Summary,
    Spread,
    Caching,
    Goodput,
    LoopLag,
    Part,
)


def document(**changes: Any) -> LoadDocument:
    measured = run(sample(), failed_sample())
    fields: dict[str, Any] = {
        "pagefall_version": "1.0",
        "started_at": "2026-01-01T00:00:00+00:00",
        "is_complete": True,
        "seed": 1,
        "preset": None,
        "scale": 1.0,
        "workload": RandomPrompts(),
        "pace": Pace(arrivals="closed", concurrency=2),
        "slo": None,
        "settings": LoadConfig(servers=ServersConfig(api_key="secret", peer_api_key="hush")),
        "targets": {
            "self": TargetDocument(
                url="http://x",
                model="m",
                endpoint="chat",
                tokens_per_word=1.0,
                fields=[],
                summary=summarise([measured], None),
            )
        },
        "comparison": [],
        "runs": [measured],
    }
    return LoadDocument(**(fields | changes))


def test_a_document_says_everything_but_keys() -> None:
    content = encode(document())
    assert b"secret" not in content
    assert b"hush" not in content
    decoded = msgspec.json.decode(content, type=LoadDocument)
    assert decoded.runs == document().runs
    assert decoded.targets == document().targets
    assert decoded.workload == RandomPrompts()
    assert (decoded.schema, decoded.version) == ("pagefall-bench-load", 1)


def test_an_infinite_rate_is_not_lost_in_json() -> None:
    settings = LoadConfig(traffic=TrafficConfig(request_rate=float("inf")))
    content = encode(document(pace=Pace(arrivals="at once"), settings=settings))
    assert msgspec.json.decode(content, type=LoadDocument).pace.arrivals == "at once"


@pytest.mark.parametrize("kind", DOCUMENTED)
def test_every_field_is_explained(kind: type[msgspec.Struct]) -> None:
    missing = [name for name in kind.__struct_fields__ if f"`{name}`" not in PAGE]
    assert not missing


def test_every_flag_workload_and_preset_is_explained() -> None:
    flags = [flag.name for group in LOAD_FLAGS.groups for flag in group.flags]
    assert not [flag for flag in flags if f"| `--{flag}` |" not in PAGE]
    assert not [name for name in (*SHAPES, *PRESETS) if f"| `{name}` |" not in PAGE]
