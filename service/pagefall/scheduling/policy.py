"""Who may start first.

The rule: higher priority first; within one priority a request that was preempted, or that `MAX_OVERTAKES` others from
behind it were started before, goes first, earliest arrival first, and while it lacks pages nothing behind it starts;
the rest go by arrival (`fcfs`) or by longest cached prefix, then arrival (`lpm`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, assert_never

from pagefall.config import SchedulePolicy
from pagefall.scheduling.request import Waiting

WINDOW: Final = 32
"""Only so many requests at the head of the queue are looked at in one step, however long it is. Those that stand back
for lower tiers do not count.
"""

MAX_OVERTAKES: Final = 32


def is_overdue(waiting: Waiting) -> bool:
    """Whether the request has waited its share: it goes first, and the queue holds for it."""
    return waiting.request.num_preemptions > 0 or waiting.num_overtakes >= MAX_OVERTAKES


def admission_order(
    window: Sequence[Waiting], policy: SchedulePolicy, num_cached_tokens: Callable[[Waiting], int]
) -> list[Waiting]:
    """The head of the queue, `window`, in the order in which it should start.

    `num_cached_tokens` is asked only where the policy needs it.
    """

    def urgency(waiting: Waiting) -> tuple[int, bool, int]:
        overdue = is_overdue(waiting)
        match policy:
            case "fcfs":
                num_cached = 0
            case "lpm":
                num_cached = 0 if overdue else num_cached_tokens(waiting)
            case _:
                assert_never(policy)
        return (-waiting.request.submit.priority, not overdue, -num_cached)

    return sorted(window, key=urgency)  # stable: equals stay in order of arrival


def count_overtakes(window: Sequence[Waiting], started: Waiting) -> None:
    """Notes that `started` left the queue before the requests of `window` in front of it.

    One that awaits a prefill under way stands aside for its own good, which is not being overtaken.
    """
    for waiting in window:
        if waiting is started:
            return
        if waiting.awaited is None:
            waiting.num_overtakes += 1
