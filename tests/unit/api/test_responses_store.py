from __future__ import annotations

import msgspec

from pagefall.api.responses_request import begun_response
from pagefall.api.responses_store import OWNER_HEADER, Owner, ResponseStore, StoredResponse, owner_of
from pagefall.api.wire_responses import ResponsesRequest, WireItem
from pagefall.text.requests import ModelCard

CARD = ModelCard(id="m", context_length=10, vocab_size=10, created=0)


def owner(key: str | None, client: str | None = None) -> Owner:
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    if client is not None:
        headers.append((OWNER_HEADER.encode(), client.encode()))
    return owner_of({"type": "http", "headers": headers})


OWNER = owner("key")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def stored(response_id: str, text: str = "") -> StoredResponse:
    response = begun_response(ResponsesRequest(), CARD, response_id, created_at=0, store=True)
    return StoredResponse(response=response, items=(WireItem(role="user", content=text),))


def kept(store: ResponseStore, *response_ids: str) -> list[str]:
    return [response_id for response_id in response_ids if store.find(OWNER, response_id) is not None]


def store_of(clock: Clock, *, max_responses: int = 10, max_bytes: int = 1_000_000) -> ResponseStore:
    return ResponseStore(max_responses=max_responses, max_bytes=max_bytes, ttl_seconds=60.0, clock=clock)


def test_what_is_kept_is_found_by_its_owner_alone() -> None:
    store = store_of(Clock())
    store.keep(OWNER, stored("a"))
    assert store.find(OWNER, "a") == stored("a")
    for stranger in (owner(None), owner("other"), owner("key", "client"), owner(None, "client")):
        assert store.find(stranger, "a") is None
        assert not store.delete(stranger, "a")
    assert store.delete(OWNER, "a")
    assert not store.delete(OWNER, "a")
    assert store.find(OWNER, "a") is None


def test_what_was_used_longest_ago_gives_way_to_more() -> None:
    store = store_of(Clock(), max_responses=2)
    store.keep(OWNER, stored("a"))
    store.keep(OWNER, stored("b"))
    assert store.find(OWNER, "a") is not None
    store.keep(OWNER, stored("c"))
    assert kept(store, "a", "b", "c") == ["a", "c"]


def test_all_together_take_no_more_than_they_may() -> None:
    size = len(msgspec.json.encode(stored("a", "x" * 1000)))
    store = store_of(Clock(), max_bytes=2 * size)
    for response_id in "abc":
        store.keep(OWNER, stored(response_id, "x" * 1000))
    assert kept(store, "a", "b", "c") == ["b", "c"]
    store.keep(OWNER, stored("d", "x" * 5000))
    assert kept(store, "b", "c", "d") == ["b", "c"]
    store.delete(OWNER, "b")
    store.keep(OWNER, stored("e", "x" * 1000))
    assert kept(store, "c", "e") == ["c", "e"]


def test_it_is_forgotten_some_time_after_its_last_use() -> None:
    clock = Clock()
    store = store_of(clock)
    store.keep(OWNER, stored("a"))
    store.keep(OWNER, stored("b"))
    clock.now = 59.0
    assert kept(store, "a") == ["a"]
    clock.now = 60.0
    assert kept(store, "b", "a") == ["a"]
    clock.now = 120.0
    assert kept(store, "a") == []


def test_a_store_of_no_size_is_not_open() -> None:
    assert store_of(Clock()).is_open
    assert not store_of(Clock(), max_responses=0).is_open
    assert not store_of(Clock(), max_bytes=0).is_open
