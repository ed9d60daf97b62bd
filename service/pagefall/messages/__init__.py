"""Every message that crosses from one actor to another, and the value types inside them.

All are frozen. Arrays travel by reference inside the process: the sender never writes to the part it has sent.

    HTTP --Submit / Cancel--> scheduler --StepPlan--> model runner
     ^                           |  ^                     |
     +--- StepOutput (1 a step)--+  +---- StepResult -----+

    scheduler --Offload / LoadBack / Lookup / Fetch / Backup--> cache controller
        ^                                                             |
        +------ CopyDone / LookedUp / PagesFetched / BackedUp --------+

    HTTP --AttachStorage / DetachStorage--> scheduler --the same--> cache controller
     ^                                       |    ^                        |
     +------------- StorageChanged ----------+    +---- StorageChanged ----+
"""

from __future__ import annotations

from pagefall.messages.explanations import Divergence, EvictionCause, MissedPages, MissReason, PrefixReport, TokenSource
from pagefall.messages.ids import FinishReason, PageIds, RequestId, Tier, TokenIds, TransferId
from pagefall.messages.requests import (
    Accepted,
    BranchFacts,
    CacheDescribed,
    CacheFlushed,
    Cancel,
    DescribeCache,
    FlushCache,
    KeysSnapshot,
    Rejected,
    RequestOutput,
    SamplingParams,
    ScoredTokens,
    SequenceStep,
    SnapshotKeys,
    StepOutput,
    StepPlan,
    StepResult,
    StopParams,
    Submit,
    TokenLogprob,
)
from pagefall.messages.stats import BreakerState, ControllerStats, Direction, PoolStats, SchedulerStats, TransferStats
from pagefall.messages.transfers import (
    AttachStorage,
    BackedUp,
    Backup,
    ClearStorage,
    CopyDone,
    DetachStorage,
    Fetch,
    FetchEnded,
    FetchOutcome,
    LoadBack,
    LookedUp,
    Lookup,
    Offload,
    PagesFetched,
    StopFetch,
    StorageAnswer,
    StorageChanged,
    StorageCleared,
)

ControllerReport = CopyDone | LookedUp | PagesFetched | FetchEnded | BackedUp | StorageCleared | StorageChanged
StorageChange = AttachStorage | DetachStorage
ToController = Offload | LoadBack | Lookup | Fetch | StopFetch | Backup | ClearStorage | StorageChange
ToScheduler = Submit | Cancel | FlushCache | DescribeCache | SnapshotKeys | StorageChange | ControllerReport
FromScheduler = Accepted | Rejected | StepOutput | CacheFlushed | CacheDescribed | KeysSnapshot | StorageChanged

__all__ = [
    "Accepted",
    "AttachStorage",
    "BackedUp",
    "Backup",
    "BranchFacts",
    "BreakerState",
    "CacheDescribed",
    "CacheFlushed",
    "Cancel",
    "ClearStorage",
    "ControllerReport",
    "ControllerStats",
    "CopyDone",
    "DescribeCache",
    "DetachStorage",
    "Direction",
    "Divergence",
    "EvictionCause",
    "Fetch",
    "FetchEnded",
    "FetchOutcome",
    "FinishReason",
    "FlushCache",
    "FromScheduler",
    "KeysSnapshot",
    "LoadBack",
    "LookedUp",
    "Lookup",
    "MissReason",
    "MissedPages",
    "Offload",
    "PageIds",
    "PagesFetched",
    "PoolStats",
    "PrefixReport",
    "Rejected",
    "RequestId",
    "RequestOutput",
    "SamplingParams",
    "SchedulerStats",
    "ScoredTokens",
    "SequenceStep",
    "SnapshotKeys",
    "StepOutput",
    "StepPlan",
    "StepResult",
    "StopFetch",
    "StopParams",
    "StorageAnswer",
    "StorageChange",
    "StorageChanged",
    "StorageCleared",
    "Submit",
    "Tier",
    "ToController",
    "ToScheduler",
    "TokenIds",
    "TokenLogprob",
    "TokenSource",
    "TransferId",
    "TransferStats",
]
