"""The router's validated configuration, one frozen part per owner. Flags become it in `cli/router.py`."""

from __future__ import annotations

import msgspec

from pagefall.config import HttpConfig
from pagefall.router.routing import PolicyName


class WorkersConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who the workers are, and when one counts as well.

    `worker_api_key` None: workers are sent the client's own `Authorization`. `health_failures` probes in a row that
    fail make a worker unhealthy, `health_successes` in a row make it healthy again.
    """

    worker_urls: tuple[str, ...] = ()
    workers_file: str | None = None
    worker_api_key: str | None = None
    health_path: str = "/health"
    health_interval: float = 2.0
    health_timeout: float = 2.0
    health_failures: int = 2
    health_successes: int = 1
    breaker_failures: int = 5
    """Requests in a row that fail at a worker until it is left alone for a while."""
    breaker_open_seconds: float = 2.0
    """How long at first; twice as long each time it fails again, a minute at most."""


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker gets a request. The tokenizer is the model's: `tokenizer_path`, else `model_path`, else embedded."""

    policy: PolicyName = "cache_aware"
    model_path: str | None = None
    tokenizer_path: str | None = None
    served_model_name: str | None = None
    """The model that the tokenizer is for, where workers serve several; None: whatever model they serve."""
    revision: str | None = None
    trust_remote_code: bool = False
    chat_template: str | None = None
    disable_tokenizer: bool = False


class ForwardConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are forwarded; all times in seconds.

    `max_attempts` counts the first one. `retry_deadline`: so long after a request's arrival it may be sent to another
    worker. `first_byte_timeout`: from sending it to the first byte of the answer, which of one that does not stream is
    its end too. `idle_timeout`: between two pieces of an answer.
    """

    max_concurrent_requests: int = 1024
    max_queued_requests: int = 1024
    queue_timeout: float = 30.0
    max_attempts: int = 3
    retry_deadline: float = 60.0
    connect_timeout: float = 2.0
    first_byte_timeout: float = 600.0
    idle_timeout: float = 120.0
    disable_worker_header: bool = False


class TellingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the router tells of its decisions. `request_log`: a file, or "-" for standard output."""

    explain_max_requests: int = 4096
    request_log: str | None = None


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True):
    workers: WorkersConfig = WorkersConfig()
    routing: RoutingConfig = RoutingConfig()
    forward: ForwardConfig = ForwardConfig()
    http: HttpConfig = HttpConfig()
    telling: TellingConfig = TellingConfig()
    owns_workers: bool = False
    """Nobody else knows their ports: what they have for `/metrics` is shown with the router's own."""
