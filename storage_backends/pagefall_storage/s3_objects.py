"""The requests of an S3 store: each blocks its thread until it is answered, and is made once.

The object of the key `<namespace>/<name>` is `<prefix><namespace>/<name>`; a namespace of several parts is joined by
dots, and `_` stands for none. So no object's name is a folder of another's, which servers that keep objects as files do
not take.

Every method raises `RequestFailed`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import msgspec
from botocore.exceptions import ClientError

from pagefall_storage.identity import MARK
from pagefall_storage.keys import is_key
from pagefall_storage.protocol import Corrupt, GetOutcome, Hit, Key, Miss, Stored, StoredValue
from pagefall_storage.s3_client import S3Clients
from pagefall_storage.s3_errors import REQUEST_ERRORS, RequestFailed, error_code, request_failed, status_code
from pagefall_storage.s3_loan import Loan

logger = logging.getLogger(__name__)

MAX_DELETED_AT_ONCE: Final = 1000

_NO_NAMESPACE: Final = "_"
_NO_BUCKET: Final = "NoSuchBucket"
_NOT_FOUND: Final = frozenset({"NoSuchKey", "404"})
_MAX_MARK_BYTES: Final = 1024
_NOT_FOUND_STATUS: Final = 404
_NOT_FIRST_STATUS: Final = frozenset({409, 412})
"""409: another write of it is under way; 412: it is there."""
_NOT_IMPLEMENTED_STATUS: Final = 501


class Listing(msgspec.Struct, frozen=True):
    """Up to 1,000 values. `next_token` asks for those that follow; None: there are no more."""

    values: list[StoredValue]
    next_token: str | None


class S3Objects:
    """May be used by many threads."""

    def __init__(self, clients: S3Clients, *, bucket: str, prefix: str) -> None:
        self._clients = clients
        self._bucket = bucket
        self._prefix = prefix
        self._knows_conditions = True
        self._is_bucket_there = True

    def read(self, wanted: tuple[Key, Loan]) -> GetOutcome:
        """Reads the object into the loan. Raises `RecalledError` too."""
        key, loan = wanted
        with self._request() as client:
            try:
                answer = client.get_object(**self._object(key))
            except ClientError as error:
                if error_code(error) in _NOT_FOUND:
                    return Miss()
                raise
            # The body's own `readinto` copies; the response below it reads from the connection into the loan.
            with answer["Body"] as response:
                num_bytes = answer["ContentLength"]
                if num_bytes != loan.num_bytes:
                    return Corrupt("short" if num_bytes < loan.num_bytes else "long")
                with loan.use(interrupt=partial(_interrupt, response)) as memory:
                    num_read = _read_into(response, memory)
                if num_read < num_bytes:
                    raise RequestFailed("error", f"the connection ended after {num_read} of {num_bytes} bytes")
                response.release_conn()
        return Hit()

    def write(self, item: tuple[Key, Loan]) -> Stored:
        """Stores the value unless an object of its length is there. Raises `RecalledError` too."""
        key, loan = item
        with loan.use() as memory:
            body = bytes(memory)  # botocore takes no memoryview; and a stalled upload lets go of the caller's memory
        if not (self._knows_conditions and self._write_once(key, body)):
            with self._request() as client:
                client.put_object(**self._object(key), Body=body)
        return Stored()

    def num_bytes(self, key: Key) -> int | None:
        """The length of the object; None: there is none.

        S3 says the same of a bucket that is not there. Once another request has said that it is not, it is looked for
        until it is there again.
        """
        with self._request() as client:
            try:
                return int(client.head_object(**self._object(key))["ContentLength"])
            except ClientError as error:
                if status_code(error) != _NOT_FOUND_STATUS:
                    raise
            if not self._is_bucket_there:
                self._look_for_bucket(client)
        return None

    def delete(self, keys: Sequence[Key]) -> None:
        """Deletes up to `MAX_DELETED_AT_ONCE` objects, which need not be there."""
        objects = [{"Key": self._name(key)} for key in keys]
        with self._request() as client:
            answer = client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
        for error in answer.get("Errors", ()):
            raise RequestFailed("error", f"{error.get('Code')}: {error.get('Message')}")

    def list(self, token: str | None) -> Listing:
        """The values after `token`; None: from the beginning. Objects that no key has are left out."""
        position = {} if token is None else {"ContinuationToken": token}
        with self._request() as client:
            answer = client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, **position)
        values = []
        for entry in answer.get("Contents", ()):
            key = self._key(entry["Key"])
            if key is not None:
                values.append(StoredValue(key, entry["Size"], None))
        return Listing(values, answer.get("NextContinuationToken"))

    def mark(self, new: str | None) -> str | None:
        """What tells this prefix of this bucket from all others: `new`, or what was there before it. None: nothing was,
        and nothing is to be written.
        """
        where = {"Bucket": self._bucket, "Key": f"{self._prefix}{MARK}"}
        with self._request() as client:
            if (known := _read_mark(client, where)) is not None or new is None:
                return known
            client.put_object(**where, Body=new.encode())
            return _read_mark(client, where)  # another's, if that was written a moment later

    def _write_once(self, key: Key, body: bytes) -> bool:
        """Stores the value unless something is there, and returns whether the value is there now."""
        with self._request() as client:
            try:
                client.put_object(**self._object(key), Body=body, IfNoneMatch="*")
                return True
            except ClientError as error:
                if status_code(error) == _NOT_IMPLEMENTED_STATUS or error_code(error) == "NotImplemented":
                    self._knows_conditions = False
                    logger.info("bucket %s does not know conditional writes; going without", self._bucket)
                    return False
                if status_code(error) not in _NOT_FIRST_STATUS:
                    raise
        return self.num_bytes(key) == len(body)

    def _look_for_bucket(self, client: Any) -> None:
        try:
            client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            if status_code(error) != _NOT_FOUND_STATUS:
                raise
            raise RequestFailed("error", f"{_NO_BUCKET}: {self._bucket}") from error
        self._is_bucket_there = True

    @contextmanager
    def _request(self) -> Iterator[Any]:
        """The client, for one request, whose errors become `RequestFailed`."""
        client = self._clients.current()
        try:
            yield client
        except REQUEST_ERRORS as error:
            if isinstance(error, ClientError) and error_code(error) == _NO_BUCKET:
                self._is_bucket_there = False
            failed = request_failed(error)
            if failed.is_credentials:
                self._clients.refuse(client)
            raise failed from error

    def _object(self, key: Key) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._name(key)}

    def _name(self, key: Key) -> str:
        namespace, _, name = key.rpartition("/")
        return f"{self._prefix}{namespace.replace('/', '.') or _NO_NAMESPACE}/{name}"

    def _key(self, object_name: str) -> Key | None:
        folder, separator, name = object_name.removeprefix(self._prefix).partition("/")
        namespace = "" if folder == _NO_NAMESPACE else f"{folder.replace('.', '/')}/"
        is_ours = separator and "/" not in name and is_key(f"{namespace}{name}")
        return Key(f"{namespace}{name}") if is_ours else None


def _read_mark(client: Any, where: Mapping[str, str]) -> str | None:
    try:
        answer = client.get_object(**where)
    except ClientError as error:
        if error_code(error) in _NOT_FOUND:
            return None
        raise
    with answer["Body"] as body:
        text: str = body.read(_MAX_MARK_BYTES).decode(errors="replace")
    return text


def _read_into(response: Any, memory: memoryview) -> int:
    """How many bytes came. `response` is urllib3's; below it is the response of `http.client`, which reads from the
    connection without a copy, and which must have been read to its end before the connection can be used again.
    """
    num_read = 0
    while True:
        num_more: int = response._fp.readinto(memory[num_read:])  # noqa: SLF001 - see above
        num_read += num_more
        if num_more == 0 or num_read == memory.nbytes:
            return num_read


def _interrupt(response: Any) -> None:
    """A thread that waits for more of the body finds that there is none."""
    with suppress(OSError):  # it has been closed by the other side
        response.shutdown()
