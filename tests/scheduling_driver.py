"""The scheduler's functions around a fake model, without actors: messages in, steps by hand, answers out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from tests.fake_model import FakeModel
from tests.report_checks import check_report

from pagefall.config import CacheConfig, SchedulerConfig, TierConfig
from pagefall.messages import (
    Accepted,
    Cancel,
    FinishReason,
    PrefixReport,
    Rejected,
    RequestId,
    RequestOutput,
    SamplingParams,
    StepPlan,
    StopParams,
    Submit,
)
from pagefall.scheduling import intake, survey
from pagefall.scheduling.apply import apply_result
from pagefall.scheduling.plan import plan_step
from pagefall.scheduling.state import SchedulerState

DEFAULT_SAMPLING: Final = SamplingParams()
DEFAULT_SCHEDULER: Final = SchedulerConfig()
DEFAULT_CACHE: Final = CacheConfig()


def submit_message(
    name: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 4,
    stop: frozenset[int] = frozenset(),
    priority: int = 0,
    cache_salt: str = "",
    sampling: SamplingParams = DEFAULT_SAMPLING,
    pins: tuple[tuple[int, float], ...] = (),
) -> Submit:
    return Submit(
        request_id=RequestId(name),
        token_ids=np.array(prompt, dtype=np.uint32),
        sampling=sampling,
        stop=StopParams(max_tokens=max_tokens, stop_token_ids=stop),
        priority=priority,
        cache_salt=cache_salt,
        pins=pins,
    )


class Driver:
    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        scheduler: SchedulerConfig = DEFAULT_SCHEDULER,
        cache: CacheConfig = DEFAULT_CACHE,
        tiers: TierConfig | None = None,
        num_host_pages: int = 0,
        history_tokens: int = 1_000_000,
    ) -> None:
        self.state = SchedulerState(
            scheduler=scheduler,
            cache=cache,
            page_size=page_size,
            num_pages=num_pages,
            namespace=b"test",
            tiers=tiers,
            num_host_pages=num_host_pages,
            page_bytes=1000,
            history_tokens=history_tokens,
        )
        self.model = FakeModel(num_pages=num_pages, page_size=page_size)
        self.answers: dict[str, list[int]] = defaultdict(list)
        self.finish_reasons: dict[str, FinishReason] = {}
        self.cached_tokens: dict[str, int] = {}
        self.reports: dict[str, PrefixReport] = {}
        self.followed: dict[str, set[bytes]] = defaultdict(set)
        """The page keys in each tier, as whoever follows the changes knows them."""
        self.num_prompt_tokens: dict[str, int] = {}
        self.now = 0.0

    def submit(self, name: str, prompt: Sequence[int], **options: object) -> Accepted | Rejected:
        self.num_prompt_tokens[name] = len(prompt)
        return intake.submit(self.state, submit_message(name, prompt, **options), now=self.now)  # type: ignore[arg-type]

    def cancel(self, name: str, *, stop: bool = False) -> RequestOutput | None:
        message = Cancel(request_id=RequestId(name), reason="stop" if stop else "abort")
        output = intake.cancel(self.state, message, now=self.now)
        if output is not None:
            self._take(output)
            self.check_counters()
        return output

    def step(self) -> StepPlan:
        """One turn; the books of the cache are recounted after planning and after applying."""
        self.now += 1.0
        plan = plan_step(self.state, step=len(self.model.plans), now=self.now)
        self.state.cache.check()
        if plan.sequences:
            result = self.model.step(plan)
            self.during_step()
            for output in apply_result(self.state, plan, result, now=self.now).outputs:
                self._take(output)
            self.state.cache.check()
            self.check_counters()
        return plan

    def during_step(self) -> None:
        """What happens before the result of a step is applied."""

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing waits or runs."""
        for _ in range(max_steps):
            if self.state.is_idle:
                return
            assert self.step().sequences, "a step with nothing in it while requests wait"
        raise AssertionError(f"not idle after {max_steps} steps")

    def check_changes(self) -> None:
        """Who follows the changes knows what is in each tier of the tree."""
        survey.absorb(self.state, None, now=self.now)
        changes, self.state.changes = self.state.changes, []
        for change in changes:
            keys = {change.keys[start : start + 32] for start in range(0, len(change.keys), 32)}
            if change.cause is None:
                assert change.tier == "storage" or not keys & self.followed[change.tier], "entered twice"
                self.followed[change.tier] |= keys
            elif keys:
                assert keys <= self.followed[change.tier], "left without having been there"
                self.followed[change.tier] -= keys
            else:
                self.followed[change.tier].clear()
        for tier, joined in self.state.cache.keys()._asdict().items():
            keys = {joined[start : start + 32] for start in range(0, len(joined), 32)}
            assert keys <= self.followed[tier] if tier == "storage" else keys == self.followed[tier]

    def check_counters(self) -> None:
        """They are the sums of the reports."""
        stats, reports = self.state.stats(), self.reports.values()
        assert stats.num_prompt_tokens == sum(report.num_prompt_tokens for report in reports)
        assert stats.num_cached_tokens == stats.num_device_tokens + stats.num_host_tokens + stats.num_storage_tokens
        assert stats.num_prompt_tokens == (
            stats.num_cached_tokens + stats.num_computed_tokens + stats.num_unreached_tokens
        )
        assert sum(stats.num_missed_tokens.values()) == stats.num_computed_tokens + stats.num_unreached_tokens
        assert stats.num_known_tokens == sum(report.num_known_tokens for report in reports)

    def running(self) -> list[str]:
        return [running.request.request_id for running in self.state.running.in_order()]

    def _take(self, output: RequestOutput) -> None:
        name = output.request_id
        assert name not in self.finish_reasons, "an output after the last one"
        self.answers[name].extend(output.token_ids)
        assert self.cached_tokens.setdefault(name, output.cached_tokens) == output.cached_tokens
        assert (output.prefix is None) is (name in self.reports), "a report on the first output, and on no other"
        if output.prefix is not None:
            self.reports[name] = output.prefix
            check_report(output.prefix)
            assert output.prefix.num_prompt_tokens == self.num_prompt_tokens[name]
        if output.finish_reason is not None:
            self.finish_reasons[name] = output.finish_reason


def planned(plan: StepPlan) -> dict[str, tuple[int, int]]:
    """Start and end of every request's share of a step."""
    return {sequence.request_id: (sequence.start, len(sequence.token_ids)) for sequence in plan.sequences}


def prompt(seed: int, num_tokens: int) -> list[int]:
    """Tokens that no other seed has a page of."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, 2**31, num_tokens)]
