"""The default policy: the worker at which the request costs least, mostly its expected time to first token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from pagefall.router.approximate import ApproximateTree, blocks_of, num_prompt_tokens
from pagefall.router.cost import CacheLoad, Cost, CostWeights, TokenHits, fleet_speeds, request_cost
from pagefall.router.index import PrefixIndex
from pagefall.router.layout import PageLayout
from pagefall.router.page_names import PageNames
from pagefall.router.routing import Choice, RouteRequest, WorkerId, WorkerView
from pagefall.router.turns import Turns

_EXPECTED_SECONDS: Final = 10.0
"""How long after its expected first token a prompt counts as cached although no event has said so."""

_SMALL_CACHE_TOKENS: Final = 4096
"""Of caches that do not say how much they hold, none is taken to be full with less."""


class CacheAware:
    """Looks every prompt up in what the workers' events say, else in what was sent to them, and adds their queues.

    Workers whose costs are within the slack of the least are equal. Of equals the one with most of the prompt
    is taken, so that a conversation stays where it is, and then the one that was not chosen for longest.
    """

    def __init__(
        self,
        *,
        index: PrefixIndex,
        approximate: ApproximateTree | None = None,
        weights: CostWeights | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`index` is fed by subscribers; a worker that is not in it is judged by what was sent to it."""
        self._index = index
        self._approximate = approximate or ApproximateTree()
        self._weights = weights or CostWeights()
        self._clock = clock
        self._names = PageNames()
        self._turns = Turns()

    def choose(self, request: RouteRequest, workers: Sequence[WorkerView]) -> Choice:
        """Changes nothing but whose turn it is. The ranking is by cost, which is not quite the order of its seconds."""
        num_tokens = num_prompt_tokens(request)
        hits = self._hits(request, [worker.worker_id for worker in workers], num_tokens)
        costs = self._costs(workers, hits, num_tokens)
        least = min(cost.seconds for cost in costs.values())
        bound = least * (1 + self._weights.slack_fraction) + self._weights.slack_seconds
        equals = [worker_id for worker_id, cost in costs.items() if cost.seconds <= bound]
        most = max(hits[worker_id].num_tokens for worker_id in equals)
        chosen = self._turns.take([worker_id for worker_id in equals if hits[worker_id].num_tokens == most])
        ranking = sorted(costs, key=lambda worker_id: (worker_id != chosen, costs[worker_id].seconds))
        here = hits[chosen]
        return Choice(
            worker_id=chosen,
            reason=_reason(chosen, hits, num_tokens),
            num_prompt_tokens=num_tokens,
            num_device_tokens=here.num_device,
            num_host_tokens=here.num_host,
            num_storage_tokens=here.num_storage,
            expected_ttft_seconds=costs[chosen].ttft_seconds,
            ranking=tuple((worker_id, costs[worker_id].ttft_seconds) for worker_id in ranking),
        )

    def sent(self, request: RouteRequest, choice: Choice) -> None:
        """Until events say more, the worker is expected to have what it was sent."""
        worker_id = choice.worker_id
        layout = self._index.layout(worker_id)
        if layout is None or request.token_ids is None:
            self._approximate.sent(blocks_of(request), worker_id)
        else:
            names = self._names.of(request, layout).names(choice.num_device_tokens // layout.page_size)
            until = self._clock() + (choice.expected_ttft_seconds or 0.0) + _EXPECTED_SECONDS
            self._index.expect(worker_id, names, until)
        self._names.forget(request)

    def removed(self, worker_id: WorkerId) -> None:
        self._index.drop(worker_id)
        self._approximate.drop(worker_id)
        self._turns.forget(worker_id)

    def _costs(
        self, workers: Sequence[WorkerView], hits: dict[WorkerId, TokenHits], num_tokens: int
    ) -> dict[WorkerId, Cost]:
        fleet = fleet_speeds(workers, self._weights)
        cached = {worker.worker_id: self._num_cached_tokens(worker.worker_id) for worker in workers}
        fullest, emptiest = max(*cached.values(), _SMALL_CACHE_TOKENS), min(cached.values())
        is_known = any(2 * hit.num_tokens >= num_tokens for hit in hits.values())
        return {
            worker.worker_id: request_cost(
                worker,
                hits[worker.worker_id],
                num_tokens,
                CacheLoad(
                    fill=cached[worker.worker_id] / (self._capacity_tokens(worker.worker_id) or fullest),
                    num_tokens_ahead=0 if is_known else cached[worker.worker_id] - emptiest,
                ),
                fleet,
                self._weights,
            )
            for worker in workers
        }

    def _capacity_tokens(self, worker_id: WorkerId) -> int | None:
        """What its device holds; None where it does not say."""
        facts = self._index.facts(worker_id)
        if facts is None or facts.num_device_pages is None:
            return None
        return facts.num_device_pages * facts.layout.page_size

    def _num_cached_tokens(self, worker_id: WorkerId) -> int:
        layout = self._index.layout(worker_id)
        if layout is None:
            return self._approximate.num_tokens(worker_id)
        num_pages = self._index.num_pages(worker_id, "device") + self._index.num_expected(worker_id)
        return num_pages * layout.page_size

    def _hits(
        self, request: RouteRequest, worker_ids: Sequence[WorkerId], num_tokens: int
    ) -> dict[WorkerId, TokenHits]:
        self._index.expire(self._clock())
        hits: dict[WorkerId, TokenHits] = {}
        by_layout: dict[PageLayout, list[WorkerId]] = {}
        unknown: list[WorkerId] = []
        for worker_id in worker_ids:
            layout = self._index.layout(worker_id)
            if layout is None or request.token_ids is None:
                unknown.append(worker_id)
            else:
                by_layout.setdefault(layout, []).append(worker_id)
        for layout, ids in by_layout.items():
            found = self._index.lookup(layout, self._names.of(request, layout).parts())
            for worker_id in ids:
                pages, size = found[worker_id], layout.page_size
                hits[worker_id] = TokenHits(pages.num_device * size, pages.num_host * size, pages.num_storage * size)
        if unknown:
            # The last token is always computed.
            most = max(num_tokens - 1, 0)
            for worker_id, num_sent in self._approximate.match(blocks_of(request), unknown).items():
                hits[worker_id] = TokenHits(min(num_sent, most))
        return hits


def _reason(chosen: WorkerId, hits: dict[WorkerId, TokenHits], num_tokens: int) -> str:
    here = hits[chosen].num_tokens
    longest = max(hits, key=lambda worker_id: hits[worker_id].num_tokens)
    most = hits[longest].num_tokens
    if not most:
        return "no worker has this prompt: least to do"
    if here == most:
        return f"has most of the prompt, {here} of {num_tokens} tokens"
    return f"sooner than {longest}, which has {most} of {num_tokens} tokens and more to do; has {here} itself"
