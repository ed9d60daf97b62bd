"""A discrete-event simulation of a router and its workers: no clock, no sockets, the same result every time.

A worker prefills one prompt at a time, in the order they came, and decodes any number beside it, which slows the
prefill down. Its device cache is a bounded tree that evicts what was used longest ago, from the ends. What enters and
leaves it reaches the router's index as KV events, a little later.

    client --request--> choose --> worker's queue --> prefill --> decode --> the client's next request
                          ^                              |
                          +------ KV events, later ------+
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from tests.router_workloads import SimRequest, Workload

from pagefall.cache.keys import page_keys, root_key
from pagefall.kv_events import Entered, KvEvent, Left, names_as_ints, page_names
from pagefall.router.approximate import ApproximateTree
from pagefall.router.index import PrefixIndex
from pagefall.router.layout import CacheFacts, PageLayout
from pagefall.router.policies import make_policy
from pagefall.router.routing import Choice, Policy, PolicyName, RouteRequest, WorkerId, WorkerView

LAYOUT = PageLayout(b"n" * 32, 16)


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    """`num_cache_tokens`: what a worker's device holds. `has_events` False: workers of another make. `knows_speeds`:
    the router has measured the workers' speeds.
    """

    num_workers: int = 4
    num_cache_tokens: int = 16 * (2048 + 64)
    prefill_tokens_per_second: float = 8000.0
    seconds_per_output: float = 0.01
    slowdown_per_answer: float = 0.01
    event_seconds: float = 0.005
    has_events: bool = True
    knows_speeds: bool = True


@dataclass(eq=False)
class Job:
    request: SimRequest
    route: RouteRequest
    choice: Choice
    names: list[int]
    sent_at: float
    done: Callable[[], None]
    num_cached_tokens: int = 0


@dataclass
class Result:
    """Rates are fractions, times in seconds. `load`: requests by worker."""

    hit_rate: float
    makespan: float
    load: Counter[WorkerId]
    ttfts: list[float]
    num_requests: int

    @property
    def throughput(self) -> float:
        return self.num_requests / self.makespan

    @property
    def max_over_mean(self) -> float:
        return max(self.load.values()) / (sum(self.load.values()) / len(self.load))

    @property
    def median_ttft(self) -> float:
        return float(np.median(self.ttfts))


class SimWorker:
    def __init__(self, worker_id: WorkerId, simulation: Simulation) -> None:
        self.worker_id = worker_id
        self._simulation = simulation
        self._config = simulation.config
        self._queue: deque[Job] = deque()
        self._is_prefilling = False
        self._num_decoding = 0
        self._pages: OrderedDict[int, None] = OrderedDict()

    def add(self, job: Job) -> None:
        self._queue.append(job)
        self._prefill_next()

    def _prefill_next(self) -> None:
        if self._is_prefilling or not self._queue:
            return
        self._is_prefilling = True
        job = self._queue.popleft()
        num_pages = 0
        while num_pages < len(job.names) and job.names[num_pages] in self._pages:
            num_pages += 1
        job.num_cached_tokens = num_pages * LAYOUT.page_size
        num_computed = len(job.request.token_ids) - job.num_cached_tokens
        slowdown = 1 + self._num_decoding * self._config.slowdown_per_answer
        seconds = num_computed / self._config.prefill_tokens_per_second * slowdown
        self._simulation.after(seconds, lambda: self._prefilled(job))

    def _prefilled(self, job: Job) -> None:
        self._is_prefilling = False
        self._cache(job.names)
        self._simulation.first_token(self.worker_id, job)
        self._num_decoding += 1
        self._simulation.after(job.request.num_output * self._config.seconds_per_output, lambda: self._answered(job))
        self._prefill_next()

    def _answered(self, job: Job) -> None:
        self._num_decoding -= 1
        self._simulation.answered(self.worker_id, job)

    def _cache(self, names: Sequence[int]) -> None:
        entered = [name for name in names if name not in self._pages]
        for name in reversed(names):
            self._pages[name] = None
            self._pages.move_to_end(name)
        left = []
        while len(self._pages) * LAYOUT.page_size > self._config.num_cache_tokens:
            left.append(self._pages.popitem(last=False)[0])
        self._simulation.publish(self.worker_id, entered, left)


@dataclass
class Outstanding:
    num_requests: int = 0
    num_prefill_tokens: int = 0


@dataclass
class Simulation:
    policy_name: PolicyName
    workload: Workload
    config: SimConfig
    now: float = 0.0
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def run(self) -> Result:
        config = self.config
        self._index = PrefixIndex()
        self._policy: Policy = make_policy(
            self.policy_name,
            index=self._index,
            approximate=ApproximateTree(max_tokens_per_worker=config.num_cache_tokens),
            seed=1,
            clock=lambda: self.now,
        )
        ids = [WorkerId(f"http://worker-{number}") for number in range(config.num_workers)]
        self._workers = {id_: SimWorker(id_, self) for id_ in ids}
        self._outstanding = {id_: Outstanding() for id_ in ids}
        self._load: Counter[WorkerId] = Counter(dict.fromkeys(ids, 0))
        self._numbers: Counter[WorkerId] = Counter()
        self._num_cached = self._num_prompt = 0
        self._ttfts: list[float] = []
        if config.has_events:
            for id_ in ids:
                facts = CacheFacts(LAYOUT, num_device_pages=config.num_cache_tokens // LAYOUT.page_size)
                self._index.begin_snapshot(id_, facts)
                self._index.end_snapshot(id_)
        for client in self.workload.clients:
            self.after(0.0, self._client(list(client)))
        while self._agenda:
            self.now, _, act = heapq.heappop(self._agenda)
            act()
        return Result(
            hit_rate=self._num_cached / self._num_prompt,
            makespan=self.now,
            load=self._load,
            ttfts=self._ttfts,
            num_requests=self.workload.num_requests,
        )

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + seconds, next(self._order), act))

    def publish(self, worker_id: WorkerId, entered: Sequence[int], left: Sequence[int]) -> None:
        if not self.config.has_events:
            return
        events: list[KvEvent] = []
        for names, kind in ((entered, Entered), (left, Left)):
            if names:
                self._numbers[worker_id] += 1
                packed = np.array(names, dtype="<u8").tobytes()
                events.append(kind(number=self._numbers[worker_id], tier="device", names=packed))

        def arrive() -> None:
            for event in events:
                self._index.apply(worker_id, event)

        self.after(self.config.event_seconds, arrive)

    def first_token(self, worker_id: WorkerId, job: Job) -> None:
        self._outstanding[worker_id].num_prefill_tokens -= job.choice.num_prompt_tokens - job.choice.num_cached_tokens
        self._num_prompt += len(job.request.token_ids)
        self._num_cached += job.num_cached_tokens
        self._ttfts.append(self.now - job.sent_at)

    def answered(self, worker_id: WorkerId, job: Job) -> None:
        self._outstanding[worker_id].num_requests -= 1
        self.after(self.workload.think_seconds, job.done)

    def _client(self, requests: list[SimRequest]) -> Callable[[], None]:
        upcoming = iter(requests)

        def send_next() -> None:
            request = next(upcoming, None)
            if request is not None:
                self._send(request, send_next)

        return send_next

    def _send(self, request: SimRequest, done: Callable[[], None]) -> None:
        route = RouteRequest(token_ids=request.token_ids, text="", session_key=request.session_key)
        choice = self._policy.choose(route, [self._view(id_) for id_ in self._workers])
        self._policy.sent(route, choice)
        self._load[choice.worker_id] += 1
        outstanding = self._outstanding[choice.worker_id]
        outstanding.num_requests += 1
        outstanding.num_prefill_tokens += choice.num_prompt_tokens - choice.num_cached_tokens
        keys = page_keys(root_key(LAYOUT.namespace, ""), request.token_ids[:-1], LAYOUT.page_size)
        names = names_as_ints(page_names(b"".join(keys)))
        self._workers[choice.worker_id].add(Job(request, route, choice, names, self.now, done))

    def _view(self, worker_id: WorkerId) -> WorkerView:
        outstanding = self._outstanding[worker_id]
        knows = self.config.knows_speeds
        return WorkerView(
            worker_id=worker_id,
            num_outstanding=outstanding.num_requests,
            num_outstanding_prefill_tokens=outstanding.num_prefill_tokens,
            prefill_tokens_per_second=self.config.prefill_tokens_per_second if knows else None,
            seconds_per_output=self.config.seconds_per_output if knows else None,
        )


def simulate(policy_name: PolicyName, workload: Workload, config: SimConfig | None = None) -> Result:
    return Simulation(policy_name, workload, config or SimConfig()).run()
