from __future__ import annotations

import numpy as np
import pytest
from tests.kv_event_server import packed

from pagefall.kv_events import Entered
from pagefall.messages import Tier, TokenIds
from pagefall.router.cache_aware import CacheAware
from pagefall.router.index import PrefixIndex
from pagefall.router.layout import CacheFacts, PageLayout
from pagefall.router.page_names import PageNames
from pagefall.router.routing import Choice, RouteRequest, WorkerId, WorkerView

LAYOUT = PageLayout(b"n" * 32, 16)
A, B, C = WorkerId("http://a"), WorkerId("http://b"), WorkerId("http://c")


def tokens(count: int, seed: int = 1) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 50_000, count, dtype=np.uint32)


def request(token_ids: TokenIds | None, *, text: str = "", salt: str = "") -> RouteRequest:
    return RouteRequest(token_ids=token_ids, text=text, cache_salt=salt)


def view(worker: WorkerId, *, queue: int = 0, running: int = 0, speed: float | None = None) -> WorkerView:
    return WorkerView(
        worker_id=worker,
        num_outstanding=running,
        num_outstanding_prefill_tokens=queue,
        prefill_tokens_per_second=speed,
    )


class Rig:
    def __init__(self, *, store_id: str | None = "", num_device_pages: int | None = None) -> None:
        self.now = 0.0
        self.index = PrefixIndex()
        self.policy = CacheAware(index=self.index, clock=lambda: self.now)
        for worker in (A, B, C):
            self.index.begin_snapshot(worker, CacheFacts(LAYOUT, store_id, num_device_pages))
            self.index.end_snapshot(worker)

    def cache(self, worker: WorkerId, tier: Tier, token_ids: TokenIds, salt: str = "") -> None:
        names = PageNames().of(request(np.append(token_ids, np.uint32(0)), salt=salt), LAYOUT).names()
        self.index.apply(worker, Entered(number=1, tier=tier, names=packed(names)))

    def choose(self, token_ids: TokenIds, *views: WorkerView, salt: str = "") -> Choice:
        return self.policy.choose(request(token_ids, salt=salt), views or (view(A), view(B), view(C)))

    def send(self, token_ids: TokenIds, *views: WorkerView) -> Choice:
        one = request(token_ids)
        choice = self.policy.choose(one, views or (view(A), view(B), view(C)))
        self.policy.sent(one, choice)
        return choice


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_device_hit_comes_before_a_host_hit_and_that_before_the_store() -> None:
    rig = Rig(store_id=None)
    prompt = tokens(1000)
    rig.cache(C, "device", prompt)
    rig.cache(B, "host", prompt)
    assert rig.choose(prompt).worker_id == C
    assert rig.choose(prompt, view(A), view(B)).worker_id == B
    shared = Rig()
    shared.cache(A, "storage", prompt)
    shared.cache(B, "host", prompt)
    assert shared.choose(prompt, view(A), view(B), view(C)).worker_id == B


def test_what_one_worker_stored_counts_for_another_only_where_they_share_the_store() -> None:
    rig, prompt = Rig(), tokens(1000)
    rig.index.begin_snapshot(C, CacheFacts(LAYOUT, "its own"))
    rig.index.end_snapshot(C)
    rig.cache(A, "storage", prompt)
    assert [rig.choose(prompt, view(worker)).num_storage_tokens for worker in (A, B, C)] == [992, 992, 0]
    rig.cache(C, "storage", prompt[:320])
    assert rig.choose(prompt, view(C)).num_storage_tokens == 320


@pytest.mark.parametrize(("num_device_pages", "expected"), [(500, A), (50_000, B)])
def test_a_prompt_is_kept_out_of_a_full_cache_and_not_out_of_one_that_has_room(
    num_device_pages: int, expected: WorkerId
) -> None:
    """Half of it is in the cache of A, which has a queue; at B all of it would have to be computed."""
    rig, prompt = Rig(num_device_pages=num_device_pages), tokens(1000)
    for number, worker in enumerate((A, B, C)):
        rig.cache(worker, "device", tokens(7000, seed=number + 10))
    rig.cache(A, "device", prompt[:512])
    assert rig.choose(prompt, view(A, queue=1000), view(B)).worker_id == expected


def test_a_choice_says_what_is_expected_of_each_tier(rig: Rig) -> None:
    prompt = tokens(1000)
    rig.cache(B, "device", prompt[:320])
    rig.cache(B, "host", prompt[:640])
    rig.cache(A, "storage", prompt[:800])
    choice = rig.choose(prompt)
    assert choice.worker_id == B
    assert (choice.num_device_tokens, choice.num_host_tokens, choice.num_storage_tokens) == (320, 320, 160)
    assert choice.num_prompt_tokens == 1000
    assert choice.ranking[0] == (B, choice.expected_ttft_seconds)
    assert {worker for worker, _ in choice.ranking} == {A, B, C}
    assert choice.reason == "has most of the prompt, 800 of 1000 tokens"


def test_at_least_the_last_token_is_left_to_compute(rig: Rig) -> None:
    prompt = tokens(160)
    rig.cache(A, "device", prompt)
    assert rig.choose(prompt).num_cached_tokens == 144


def test_a_queue_that_costs_more_than_the_prefix_sends_the_request_elsewhere(rig: Rig) -> None:
    prompt = tokens(1000)
    rig.cache(A, "device", prompt)
    assert rig.choose(prompt, view(A, queue=500), view(B)).worker_id == A
    elsewhere = rig.choose(prompt, view(A, queue=1500), view(B))
    assert elsewhere.worker_id == B
    assert elsewhere.reason == f"sooner than {A}, which has 992 of 1000 tokens and more to do; has 0 itself"


def test_a_quicker_worker_may_have_the_longer_queue(rig: Rig) -> None:
    prompt = tokens(1000)
    assert rig.choose(prompt, view(A, queue=2000, speed=4000), view(B, queue=100, speed=500)).worker_id == A


def test_an_unknown_prompt_goes_to_the_worker_with_least_to_do(rig: Rig) -> None:
    choice = rig.choose(tokens(100), view(A, queue=300), view(B, running=9), view(C))
    assert choice.worker_id == C
    assert choice.reason == "no worker has this prompt: least to do"


def test_of_equals_the_one_that_was_not_chosen_for_longest_is_next(rig: Rig) -> None:
    chosen = [rig.choose(tokens(100, seed)).worker_id for seed in range(6)]
    assert chosen == [A, B, C, A, B, C]


def test_unknown_prompts_fill_the_caches_evenly(rig: Rig) -> None:
    rig.cache(A, "device", tokens(8000, seed=9))
    rig.cache(B, "device", tokens(4000, seed=8))
    assert rig.choose(tokens(1000)).worker_id == C


def test_an_unknown_prompt_goes_to_the_emptiest_cache_whatever_the_queues_of_the_moment(rig: Rig) -> None:
    rig.cache(A, "device", tokens(2000, seed=1))
    rig.cache(C, "device", tokens(2000, seed=2))
    workers = (view(A), view(B, queue=1000), view(C))
    assert rig.choose(tokens(1000, seed=3), *workers).worker_id == B
    assert rig.choose(tokens(1000, seed=3), view(A), view(B, queue=9000), view(C)).worker_id != B


def test_a_prompt_that_is_half_known_is_not_moved_to_an_emptier_cache(rig: Rig) -> None:
    prompt = tokens(1600)
    rig.cache(A, "device", prompt[:800])
    assert rig.choose(prompt).worker_id == A


def test_a_conversation_stays_where_it_is_for_a_small_difference(rig: Rig) -> None:
    turn = tokens(3000)
    rig.cache(A, "device", turn[:1600])
    rig.cache(B, "device", turn[:1584])
    for _ in range(4):
        assert rig.choose(turn, view(A, queue=20), view(B), view(C)).worker_id == A


def test_what_was_just_sent_counts_before_any_event(rig: Rig) -> None:
    head = tokens(1000)
    first = rig.send(np.concatenate((head, tokens(50, seed=2)))).worker_id
    for seed in range(3, 9):
        assert rig.send(np.concatenate((head, tokens(50, seed=seed)))).worker_id == first


def test_what_was_sent_is_forgotten_when_no_event_ever_speaks_of_it(rig: Rig) -> None:
    prompt = tokens(1000)
    rig.send(prompt)
    assert rig.choose(prompt).num_device_tokens == 992
    rig.now = 60.0
    assert rig.choose(prompt).num_device_tokens == 0


def test_tenants_share_nothing(rig: Rig) -> None:
    prompt = tokens(1000)
    rig.cache(B, "device", prompt, salt="x")
    assert rig.choose(prompt).num_cached_tokens == 0
    assert rig.choose(prompt, salt="x").worker_id == B


def test_a_removed_worker_has_nothing_any_more(rig: Rig) -> None:
    prompt = tokens(1000)
    rig.cache(B, "device", prompt)
    rig.policy.removed(B)
    assert rig.choose(prompt, view(B)).num_cached_tokens == 0
    assert B not in rig.index


def test_workers_without_events_are_judged_by_what_was_sent_to_them() -> None:
    policy = CacheAware(index=PrefixIndex())
    head = tokens(1000)
    one = request(np.concatenate((head, tokens(50, seed=2))))
    choice = policy.choose(one, [view(A), view(B)])
    policy.sent(one, choice)
    again = policy.choose(request(np.concatenate((head, tokens(50, seed=3)))), [view(A), view(B)])
    assert again.worker_id == choice.worker_id
    assert again.num_device_tokens == 992
    policy.removed(choice.worker_id)
    assert policy.choose(one, [view(A), view(B)]).num_cached_tokens == 0


def test_workers_with_and_without_events_are_compared(rig: Rig) -> None:
    stranger = WorkerId("http://vllm")
    prompt = tokens(1000)
    one = request(prompt)
    rig.policy.sent(one, Choice(worker_id=stranger, reason=""))
    assert rig.choose(prompt, view(A), view(stranger)).worker_id == stranger
    rig.cache(A, "device", prompt)
    assert rig.choose(prompt, view(A), view(stranger, queue=400)).worker_id == A


def test_prompts_that_nobody_could_tokenise_are_routed_by_their_text(rig: Rig) -> None:
    head = "All work and no play makes a dull prompt. " * 40
    one = request(None, text=head + "one")
    choice = rig.policy.choose(one, [view(A), view(B)])
    rig.policy.sent(one, choice)
    again = rig.policy.choose(request(None, text=head + "two"), [view(A), view(B)])
    assert again.worker_id == choice.worker_id
    assert again.num_device_tokens > 300
    assert again.num_prompt_tokens == len(head + "two") // 4 + 1


def test_an_empty_prompt_is_routed(rig: Rig) -> None:
    assert rig.choose(tokens(0)).worker_id == A
    assert rig.policy.choose(request(None), [view(B)]).worker_id == B


def test_workers_of_different_page_sizes_are_compared_in_tokens(rig: Rig) -> None:
    large = PageLayout(b"m" * 32, 64)
    other = WorkerId("http://large-pages")
    prompt = tokens(1000)
    names = PageNames().of(request(prompt), large).names()
    rig.index.begin_snapshot(other, CacheFacts(large))
    rig.index.held(other, "device", packed(names))
    rig.index.end_snapshot(other)
    choice = rig.choose(prompt, view(A), view(other))
    assert choice.worker_id == other
    assert choice.num_device_tokens == 960
