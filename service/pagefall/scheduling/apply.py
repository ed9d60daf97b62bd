"""What a step's result means for the requests that took part."""

from __future__ import annotations

from pagefall.messages import FinishReason, RequestOutput, SequenceStep, StepOutput, StepPlan, StepResult, TokenLogprob
from pagefall.scheduling import loading, offloading, settling, survey, transitions
from pagefall.scheduling.request import Prefilling, Request, Running
from pagefall.scheduling.state import SchedulerState


def apply_result(state: SchedulerState, plan: StepPlan, result: StepResult, *, now: float) -> StepOutput:
    """Caches the chunks that were computed, hands out the sampled tokens, and ends what is complete.

    `result` is of `plan`, the last one that was made.
    """
    state.counters.num_steps += 1
    state.counters.forward_seconds += result.forward_seconds
    state.counters.sample_seconds += result.sample_seconds
    state.prefill_cost.observe(plan, result)
    outputs = []
    for index, (sequence, sampled) in enumerate(zip(plan.sequences, result.sampled, strict=True)):
        running = _commit_chunk(state, sequence, now)
        if sequence.scored is not None:
            running.request.add_scores(sequence.start, result.scores[index])
        if sampled is not None:
            outputs.append(_take_token(state, sequence, sampled, now))
        elif sequence.request_id in result.failed:
            outputs.append(_give_up(state, sequence, now))
        elif len(sequence.token_ids) == running.request.num_tokens:
            outputs.append(_end_without_answer(state, running, now))
    return StepOutput(outputs=tuple(outputs))


def _commit_chunk(state: SchedulerState, sequence: SequenceStep, now: float) -> Running:
    """A prompt is cached chunk by chunk, so that others can use its head at once; an answer when it is complete."""
    running = state.running[sequence.request_id]
    if isinstance(running, Prefilling):
        running.num_computed = len(sequence.token_ids)
        state.cache.commit(running.lease, sequence.token_ids, now=now)
        state.cache_version += 1
        running.request.reach(running.num_computed)
        survey.absorb(state, running.request, now=now)
        offloading.after_commit(state, running.lease.node)
        loading.advance(state, running, now=now)
    return running


def _take_token(state: SchedulerState, sequence: SequenceStep, sampled: TokenLogprob, now: float) -> RequestOutput:
    running = state.running[sequence.request_id]
    if isinstance(running, Prefilling):
        running = transitions.decode(state, running)
    prefix = None
    if not running.request.is_settled:
        prefix = settling.settle(state, running.request, now=now)
        _keep_pinned(state, running.request, now)
    running.request.append(sampled.token_id)
    state.counters.num_generated_tokens += 1
    finish_reason = _finish_reason(running.request, sampled.token_id)
    if finish_reason is not None:
        transitions.end(state, running, keep_computed=True, now=now)
    return running.request.output(sampled, finish_reason=finish_reason, prefix=prefix)


def _keep_pinned(state: SchedulerState, request: Request, now: float) -> None:
    for num_tokens, seconds in request.submit.pins:
        state.pins.add(request.root, request.submit.token_ids[:num_tokens], seconds=seconds, now=now)


def _give_up(state: SchedulerState, sequence: SequenceStep, now: float) -> RequestOutput:
    """The runner cannot go on with it. What was computed is right, and cached."""
    running = state.running[sequence.request_id]
    prefix = None if running.request.is_settled else settling.settle(state, running.request, now=now)
    transitions.end(state, running, keep_computed=True, now=now)
    return running.request.output(finish_reason="abort", prefix=prefix)


def _end_without_answer(state: SchedulerState, running: Running, now: float) -> RequestOutput:
    """All of it is computed, and no more than that was asked for (`max_tokens` 0)."""
    prefix = settling.settle(state, running.request, now=now)
    _keep_pinned(state, running.request, now)
    transitions.end(state, running, keep_computed=True, now=now)
    return running.request.output(finish_reason="length", prefix=prefix)


def _finish_reason(request: Request, token_id: int) -> FinishReason | None:
    if token_id in request.submit.stop.stop_token_ids:
        return "stop"
    if not request.num_remaining_tokens:
        return "length"
    return None
