from __future__ import annotations

from tests.scheduling_driver import Driver, submit_message

from pagefall.scheduling.request import Decoding, Prefilling, Request
from pagefall.scheduling.running import RunningTable
from pagefall.scheduling.sharing import find_shared_prefill, is_under_way

HEAD = list(range(100, 112))  # three pages


def prefill(name: str, token_ids: list[int], *, root: bytes = b"r") -> Prefilling:
    request = Request(submit_message(name, token_ids), root=root, arrival=0, arrived_at=0.0)
    return Prefilling(request, Driver().state.cache.open(root, request.token_ids, now=0.0), num_computed=0)


def found(token_ids: list[int], *prefills: Prefilling, num_matched: int = 0) -> tuple[str, int] | None:
    request = Request(submit_message("x", token_ids), root=b"r", arrival=1, arrived_at=0.0)
    awaited = find_shared_prefill(request, num_matched, prefills, page_size=4)
    return None if awaited is None else (awaited.prefill.request.request_id, awaited.num_tokens)


def test_the_common_head_counts_in_whole_pages() -> None:
    assert found([*HEAD, 1, 2, 3, 4, 5], prefill("a", [*HEAD, 1, 2, 9, 9, 9])) == ("a", 12)


def test_the_prefill_with_the_longest_common_head_is_chosen() -> None:
    short, long = prefill("short", [*HEAD[:4], 9, 9, 9, 9, 9]), prefill("long", [*HEAD[:8], 9, 9, 9, 9, 9])
    assert found([*HEAD, 1], short, long, short) == ("long", 8)


def test_a_head_that_is_cached_already_is_not_waited_for() -> None:
    assert found([*HEAD, 1], prefill("a", [*HEAD, 2]), num_matched=12) is None
    assert found([*HEAD, 1], prefill("a", [*HEAD[:8], 9, 9, 9, 9, 9]), num_matched=8) is None


def test_the_last_token_is_computed_by_every_request_itself() -> None:
    assert found(HEAD, prefill("a", HEAD)) == ("a", 8)


def test_strangers_share_nothing() -> None:
    assert found([*HEAD, 1], prefill("other head", [9, *HEAD[1:], 1]), prefill("other tenant", HEAD, root=b"s")) is None
    # The same page behind different heads is not the same page.
    assert found([*HEAD, 1], prefill("a", [9, *HEAD[1:]]), num_matched=4) is None


def test_a_prefill_is_under_way_until_the_head_is_computed_or_it_leaves() -> None:
    running = RunningTable()
    first = prefill("a", HEAD)
    running.put(first)
    awaited = find_shared_prefill(
        Request(submit_message("x", [*HEAD[:8], 1]), root=b"r", arrival=1, arrived_at=0.0), 0, [first], page_size=4
    )
    assert awaited is not None
    assert is_under_way(awaited, running)
    first.num_computed = 8
    assert not is_under_way(awaited, running)
    first.num_computed = 0
    running.put(Decoding(first.request, first.lease))
    assert not is_under_way(awaited, running)
