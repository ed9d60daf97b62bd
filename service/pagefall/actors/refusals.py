"""How the engine says no to a request that is sound but cannot be served now, or ever."""

from __future__ import annotations

from pagefall.errors import RequestError
from pagefall.messages import Rejected, StorageChanged


def unavailable(reason: str) -> RequestError:
    """503: the client does best to come back. `reason` is a sentence without its full stop."""
    return RequestError(
        f"{reason}. Try again later.",
        status=503,
        type="service_unavailable_error",
        code="service_unavailable",
        retry_after_seconds=1,
    )


def refusal(rejected: Rejected, *, num_tokens: int) -> RequestError:
    """What the scheduler's `rejected` means to a client whose prompt and answer have `num_tokens` in all."""
    match rejected.reason:
        case "queue_full":
            return unavailable(f"The queue is full: {rejected.num_queued} requests wait")
        case "never_fits":
            return RequestError(
                f"The prompt and its completion may take {num_tokens} tokens, but this server's cache holds "
                f"{rejected.num_pool_tokens}. Reduce max_tokens or the prompt.",
                code="context_length_exceeded",
                param="max_tokens",
            )


def change_under_way() -> RequestError:
    """One change of the store after the other."""
    return RequestError(
        "The store is being changed already. Try again when that has ended.",
        status=409,
        code="storage_change_under_way",
        retry_after_seconds=1,
    )


def storage_refusal(changed: StorageChanged) -> RequestError:
    """Why the store is what it was: the request's fault, or the store's, which may be down."""
    outcome = "The store that was attached stays." if changed.is_attached else "No store is attached."
    error = changed.error or ""
    message = f"{error}{'' if error.endswith(('.', '?', '!')) else '.'} {outcome}"
    if changed.param is not None:
        return RequestError(message, param=changed.param, code="invalid_value")
    return RequestError(
        f"The store does not answer: {message}", status=503, type="service_unavailable_error", code="storage_error"
    )
