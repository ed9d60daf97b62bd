from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from pagefall.cli.flags import options
from pagefall.cli.reference import render_reference
from pagefall.cli.serve_flags import SERVE_FLAGS
from pagefall.config import (
    CacheConfig,
    HttpConfig,
    InsightConfig,
    ModelConfig,
    ParallelConfig,
    PrefetchPolicy,
    SchedulerConfig,
    TierConfig,
    WritePolicy,
)


def test_the_committed_page_is_what_the_table_says() -> None:
    page = Path(__file__).parents[3] / "docs" / "flags.md"
    assert page.read_text() == render_reference(SERVE_FLAGS), "run `make docs`"


def test_every_config_field_a_user_may_set_has_a_flag() -> None:
    parts = (ModelConfig, CacheConfig, TierConfig, SchedulerConfig, HttpConfig, InsightConfig, ParallelConfig)
    fields = {field for part in parts for field in part.__struct_fields__}
    assert {option.field for option in options(SERVE_FLAGS).values()} == fields


@pytest.mark.parametrize("policy", [*get_args(WritePolicy), *get_args(PrefetchPolicy)])
def test_each_policy_has_one_sentence(policy: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tiers.md").read_text()
    [sentence] = re.findall(rf"^- `{policy}`: ((?:.+\n)(?:  .+\n)*)", page, re.MULTILINE)
    assert sentence.count(". ") + sentence.count(".\n") == 1
