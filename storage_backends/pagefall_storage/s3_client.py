"""The boto3 client of a store, made when it is needed, and made anew when its credentials are refused.

botocore refreshes credentials that say when they expire (roles, containers, instances). It reads others once, such as
those in a file: an administrator's change of them is seen by making another client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, NoCredentialsError

from pagefall_storage.s3_config import S3Config
from pagefall_storage.s3_errors import RequestFailed, request_failed

logger = logging.getLogger(__name__)

_MIN_CLIENT_SECONDS: Final = 10.0
"""Making a client takes about 0.2 s of a processor, and looking for credentials may be a request of its own."""

_DEFAULT_REGION: Final = "us-east-1"


class S3Clients:
    """One client at a time, for all threads."""

    def __init__(self, config: S3Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._client: Any = None
        self._failure: RequestFailed | None = None
        self._made_at = float("-inf")

    def current(self) -> Any:
        """The client. Blocks while it is made. Raises `RequestFailed` where it cannot be, and `ValueError` where the
        endpoint makes no sense to botocore.
        """
        with self._lock:
            if self._client is not None:
                return self._client
            if self._failure is not None and self._is_recent():
                raise RequestFailed("error", self._failure.reason, is_credentials=self._failure.is_credentials)
            self._made_at = self._clock()
            try:
                self._client, self._failure = self._make(), None
            except BotoCoreError as error:
                self._failure = request_failed(error)
                raise self._failure from error
            return self._client

    def refuse(self, client: Any) -> None:
        """Its credentials are no good: another client is made next time, unless this one is new or they are fixed."""
        with self._lock:
            if client is self._client and self._config.access_key_id is None and not self._is_recent():
                # It is not closed: other threads may be using it. Its idle connections go when the last one is done.
                self._client = None
                logger.info("the credentials for bucket %s were refused; looking for others", self._config.bucket)

    def close(self) -> None:
        """Closes idle connections; those in use close when they are done. May be called again."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _is_recent(self) -> bool:
        return self._clock() - self._made_at < _MIN_CLIENT_SECONDS

    def _make(self) -> Any:
        config = self._config
        session = boto3.Session(
            aws_access_key_id=config.access_key_id,
            aws_secret_access_key=config.secret_access_key,
            aws_session_token=config.session_token,
            region_name=config.region,
        )
        region = session.region_name or (None if config.endpoint_url is None else _DEFAULT_REGION)
        client = session.client(
            "s3",
            region_name=region,
            endpoint_url=config.endpoint_url,
            config=Config(
                s3={"addressing_style": config.addressing_style},
                max_pool_connections=config.num_threads,
                connect_timeout=config.connect_timeout_seconds,
                read_timeout=config.read_timeout_seconds,
                retries={"total_max_attempts": 1, "mode": "standard"},  # the caller's business
                tcp_keepalive=True,
                # Values have checksums of their own, and not every server knows S3's newer ones.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        if session.get_credentials() is None:
            client.close()
            raise NoCredentialsError
        return client


def check_client(clients: S3Clients) -> None:
    """Makes the client. Raises `ValueError` where the configuration makes no sense; missing credentials are no error,
    as they may come.
    """
    try:
        clients.current()
    except RequestFailed as failed:
        if not failed.is_credentials:
            raise ValueError(failed.reason) from failed
        logger.warning("an S3 store without credentials yet: %s", failed.reason)
