"""Why a request to S3 failed, as one line and a kind."""

from __future__ import annotations

import http.client
from typing import Final, Literal

import urllib3
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    NoCredentialsError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

REQUEST_ERRORS: Final = (
    BotoCoreError,
    ClientError,
    ResponseParserError,
    urllib3.exceptions.HTTPError,  # while botocore reads the body of an error
    http.client.HTTPException,  # these two while a body is read straight from its connection
    OSError,
)
"""What a request may raise that is no bug."""

_MAX_REASON_CHARACTERS: Final = 300
_SLOW_DOWN: Final = frozenset(
    {"SlowDown", "RequestLimitExceeded", "ServiceUnavailable", "Throttling", "ThrottlingException", "TooManyRequests"}
)
_SLOW_DOWN_STATUS: Final = frozenset({429, 503})
_FULL: Final = frozenset({"QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull", "EntityTooLarge"})
_FULL_STATUS: Final = 507
_REFUSED_CREDENTIALS: Final = frozenset(
    {"AccessDenied", "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken", "403"}
    | {"SignatureDoesNotMatch", "TokenRefreshRequired"}
)


class RequestFailed(Exception):  # noqa: N818 - an outcome on its way, see `Failed`
    """The store did not do what it was asked to. `reason` is one line.

    `is_slow_down`: it asks for fewer requests. `is_credentials`: others might do.
    """

    def __init__(
        self,
        kind: Literal["timeout", "full", "error"],
        reason: str,
        *,
        is_slow_down: bool = False,
        is_credentials: bool = False,
    ) -> None:
        one_line = " ".join(reason.split())[:_MAX_REASON_CHARACTERS]
        super().__init__(one_line)
        self.kind = kind
        self.reason = one_line
        self.is_slow_down = is_slow_down
        self.is_credentials = is_credentials


def request_failed(error: Exception) -> RequestFailed:
    """What one of `REQUEST_ERRORS` means."""
    match error:
        case ClientError():
            return _refused(error)
        case ReadTimeoutError() | ConnectTimeoutError() | urllib3.exceptions.TimeoutError() | TimeoutError():
            return RequestFailed("timeout", f"no answer in time: {error}")
        case NoCredentialsError() | CredentialRetrievalError():
            return RequestFailed("error", str(error), is_credentials=True)
        case BotoCoreError():
            cause = error.kwargs.get("error")
            return RequestFailed("error", str(error) if cause is None else f"{error} ({cause})")
        case _:
            return RequestFailed("error", f"{type(error).__name__}: {error}")


def error_code(error: ClientError) -> str:
    """S3's name for it, such as "NoSuchKey"; the status, such as "404", of an answer without a body."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_code(error: ClientError) -> int:
    """Of the answer."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _refused(error: ClientError) -> RequestFailed:
    code, status = error_code(error), status_code(error)
    message = error.response.get("Error", {}).get("Message") or ""
    reason = f"{code or status}: {message}" if code != str(status) else f"HTTP {status} {message}"
    if code == "RequestTimeout":
        return RequestFailed("timeout", reason)
    if code in _FULL or status == _FULL_STATUS:
        return RequestFailed("full", reason)
    return RequestFailed(
        "error",
        reason,
        is_slow_down=code in _SLOW_DOWN or status in _SLOW_DOWN_STATUS,
        is_credentials=code in _REFUSED_CREDENTIALS,
    )
