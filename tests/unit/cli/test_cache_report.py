"""What is found in a store, as people and machines read it."""

from __future__ import annotations

import json

import pytest
from tests.filled_store import NAMESPACE, namespace

from pagefall.cli import cache_report
from pagefall.store_tools import NamespaceStats, Verified

TOLD = NamespaceStats(
    name="0123456789abcdef",
    manifest=NAMESPACE,
    num_pages=12345,
    num_bytes=5 << 30,
    oldest_use=1_700_000_000.0,
    newest_use=None,
)
UNTOLD = NamespaceStats(
    name="fedcba9876543210", manifest=None, num_pages=1, num_bytes=10, oldest_use=None, newest_use=None
)


def test_the_table_has_a_line_for_each_namespace() -> None:
    lines = cache_report.stats_table("files in /x", [TOLD, UNTOLD], 3).splitlines()
    assert lines[0] == "files in /x"
    assert lines[1].split() == [
        "namespace",
        "model",
        "architecture",
        "dtype",
        "page",
        "size",
        "pages",
        "size",
        "oldest",
        "use",
        "newest",
        "use",
    ]
    architecture = "LlamaForCausalLM/0123456789abcdef"
    assert lines[2].split()[:7] == [TOLD.name, "000102030405", architecture, "bfloat16", "16", "12,345", "5.0"]
    assert "2023-11-1" in lines[2]
    assert lines[3].split() == ["fedcba9876543210", "-", "-", "-", "-", "1", "10", "bytes", "-", "-"]
    assert lines[4] == "3 values are not Pagefall's"
    assert cache_report.stats_table("files in /x", [], 0) == "files in /x\nno pages\n"


def test_json_has_digests_in_hex_and_times_in_seconds() -> None:
    document = json.loads(cache_report.stats_json("files in /x", [TOLD, UNTOLD], 3))
    assert (document["store"], document["num_foreign"]) == ("files in /x", 3)
    told, untold = document["namespaces"]
    assert told["manifest"]["model_digest"] == bytes(range(32)).hex()
    assert (told["oldest_use"], told["newest_use"]) == (1_700_000_000.0, None)
    assert untold["manifest"] is None


def test_reasons_are_listed_in_falling_order() -> None:
    it = Verified(num_sound=1000, num_bad={"short": 1, "checksum": 2}, num_unread={"timeout": 4}, num_deleted=3)
    expected = ["sound 1,000", "damaged 2 checksum", "damaged 1 short", "not read 4 timeout", "deleted 3"]
    assert [" ".join(line.split()) for line in cache_report.verified(it).splitlines()] == expected


def test_differences_show_both_values_of_each_field_that_differs() -> None:
    other = namespace(page_size=32, model_digest=b"\xff" * 32)
    lines = [line.split() for line in cache_report.differences(NAMESPACE, other).splitlines()]
    assert lines == [["model_digest", "0001020304050607", "f" * 16], ["page_size", "16", "32"]]
    assert cache_report.differences(NAMESPACE, NAMESPACE).startswith("nothing differs")


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB")]
)
def test_sizes_are_in_the_largest_unit_there_is_one_of(num_bytes: int, text: str) -> None:
    assert cache_report.size(num_bytes) == text
