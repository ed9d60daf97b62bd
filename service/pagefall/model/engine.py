"""The model as the runner sees it: a plan goes in, sampled tokens come out. One thread calls it."""

from __future__ import annotations

import time

import msgspec
import torch

from pagefall.config import CacheConfig, CompileMode, SchedulerConfig, TierConfig
from pagefall.messages import RequestId, StepPlan, StepResult
from pagefall.model.attention import PagedAttention
from pagefall.model.constrained import Constraints, MatcherSource
from pagefall.model.forward import Forward, choose_forward
from pagefall.model.kv_pool import KVPool
from pagefall.model.loader import load_weights
from pagefall.model.memory import PoolSize, free_memory, size_kv_pool
from pagefall.model.sampling import Sampler
from pagefall.model.scoring import prompt_scores
from pagefall.model.scripting import Scripted, script
from pagefall.model.spec import ModelSpec
from pagefall.model.step_layout import StepLayout


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model is and what it was given. `context_length`: the most one request may use here."""

    spec: ModelSpec
    pool: PoolSize
    page_size: int
    context_length: int
    kv_bytes_per_token: int


class PagedModel:
    """Weights, the device's KV pool and the sampler. Not thread-safe: the model runner's thread owns it.

    Others may copy pages of `kv_pool` that no step writes meanwhile.
    """

    def __init__(
        self,
        info: ModelInfo,
        forward: Forward,
        kv_pool: KVPool,
        scripted: Scripted,
        grammars: MatcherSource | None = None,
    ) -> None:
        """Without `grammars`, a request that has one ends with "abort"."""
        self.info = info
        self.kv_pool = kv_pool
        self._forward = forward
        self._scripted = scripted
        self._sampler = Sampler(info.spec.vocab_size, info.spec.device)
        self._constraints = Constraints(grammars, info.spec.vocab_size, info.spec.device)

    def step(self, plan: StepPlan) -> StepResult:
        """Compute every sequence's new positions, write their keys and values, sample where a sequence asks for it.

        Raises whatever torch raises: a failed step leaves the pool's written slots undefined, and is fatal.
        """
        self._sampler.forget(plan.ended)
        self._constraints.forget(plan.ended)
        if not plan.sequences:
            return StepResult(step=plan.step, sampled=(), forward_seconds=0.0, sample_seconds=0.0)
        started = time.perf_counter()
        # Scripts run as they are: torch's optimizer of scripts stops for half a second now and then, and gains nothing.
        with torch.inference_mode(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            layout = StepLayout(plan.sequences, page_size=self.info.page_size, device=self.info.spec.device)
            sampling = [sequence for sequence in plan.sequences if sequence.sampling is not None]
            masks = self._constraints.masks(sampling)
            attention = PagedAttention(layout, self.kv_pool, self._scripted)
            all_logits = self._forward(layout, attention, masks)
            logits = all_logits[: layout.num_logits]
            scores = prompt_scores(all_logits[layout.num_logits :], plan.sequences) if layout.num_scored else ()
            computed = time.perf_counter()
            chosen = iter(self._sampler.sample(logits, sampling, masks) if sampling else ())
            sampled = [None if sequence.sampling is None else next(chosen) for sequence in plan.sequences]
        failed = frozenset[RequestId]() if masks is None else frozenset(masks.failed)
        return StepResult(
            step=plan.step,
            sampled=tuple(
                None if sequence.request_id in failed else token
                for sequence, token in zip(plan.sequences, sampled, strict=True)
            ),
            failed=failed,
            scores=scores,
            forward_seconds=computed - started,
            sample_seconds=time.perf_counter() - computed,
        )


_PLAIN_WEIGHTS_DIVISOR = 8
"""A second copy of the weights is kept where it takes at most one in so many bytes of the memory that is free."""


def load(
    spec: ModelSpec,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    tiers: TierConfig,
    *,
    compile: CompileMode,
    grammars: MatcherSource | None = None,
) -> PagedModel:
    """Load the weights, choose a forward, allocate the pool. `grammars`: where constrained requests get theirs.

    Raises `ModelError` or `ConfigError`, each one line, before the heavy part wherever it can be known before.
    """
    itemsize = spec.dtype.itemsize
    scripted = script(compile)
    model = load_weights(spec)
    forward = choose_forward(
        model,
        spec.layers,
        spec.sliding_window,
        scripted,
        keeps_plain_weights=spec.weights_bytes * _PLAIN_WEIGHTS_DIVISOR <= free_memory(spec.device),
    )
    del model  # the fused forward holds what it needs
    pool = size_kv_pool(spec, cache, scheduler, tiers, kv_itemsize=itemsize, free_bytes=free_memory(spec.device))
    kv_pool = KVPool(
        spec.layers, num_pages=pool.num_pages, page_size=cache.page_size, dtype=spec.dtype, device=spec.device
    )
    info = ModelInfo(
        spec=spec,
        pool=pool,
        page_size=cache.page_size,
        context_length=pool.context_length,
        kv_bytes_per_token=spec.kv_bytes_per_token(itemsize),
    )
    return PagedModel(info, forward, kv_pool, scripted, grammars)
