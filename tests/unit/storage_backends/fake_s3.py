"""A small S3 server on loopback that fails as it is told to. It keeps one bucket, and checks no signature."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec

BUCKET: Final = "pages"


class Refuse(msgspec.Struct, frozen=True):
    """Answers with an error."""

    status: int
    code: str


class Stall(msgspec.Struct, frozen=True):
    """Says nothing, until the server is healed; then answers. `num_bytes` of a body come before that, None: not even
    the headers.
    """

    num_bytes: int | None = None


class Truncate(msgspec.Struct, frozen=True):
    """Sends so much of a body and closes the connection."""

    num_bytes: int


class TooMuch(msgspec.Struct, frozen=True):
    """Sends so many bytes more than the length it announced."""

    num_bytes: int


Fault = Refuse | Stall | Truncate | TooMuch


class FakeS3:
    """What tests look at and change. The fault injected last strikes until `heal`."""

    def __init__(self) -> None:
        self.endpoint_url = ""
        self.objects: dict[str, bytes] = {}
        self.is_bucket_there = True
        self.knows_conditions = True
        self.access_keys: set[str] | None = None
        """Those accepted; None: any."""
        self.credentials: Callable[[], bytes] | None = None
        """What `/credentials` answers, as a container's agent does."""
        self.num_requests: Counter[str] = Counter()
        self.num_connections = 0
        self.connections: set[socket.socket] = set()
        self.max_at_once = 0
        self.stalled = threading.Semaphore(0)
        """Released by each request that begins to stall."""
        self.lock = threading.Lock()
        self.capacity: int | None = None
        """More requests than this at once are told to slow down."""
        self.pause_seconds = 0.0
        self._fault: Fault | None = None
        self._methods = frozenset[str]()
        self._healed = threading.Event()
        self._num_at_once = 0

    def inject(self, fault: Fault, *, methods: str = "GET PUT HEAD POST") -> None:
        self._healed.clear()
        self._fault, self._methods = fault, frozenset(methods.split())

    def heal(self) -> None:
        """No further fault; those who stall go on."""
        self._fault = None
        self._healed.set()

    def hang_up(self) -> None:
        """Closes every connection: clients must make new ones."""
        with self.lock:
            for connection in self.connections:
                with suppress(OSError):  # it is closed already
                    connection.shutdown(socket.SHUT_RDWR)

    def fault_of(self, method: str) -> Fault | None:
        return self._fault if method in self._methods else None

    def stall(self) -> None:
        self.stalled.release()
        self._healed.wait()

    @contextmanager
    def request(self, method: str) -> Iterator[bool]:
        """Whether there is capacity for it."""
        with self.lock:
            self.num_requests[method] += 1
            self._num_at_once += 1
            self.max_at_once = max(self.max_at_once, self._num_at_once)
            has_capacity = self.capacity is None or self._num_at_once <= self.capacity
        try:
            yield has_capacity
        finally:
            with self.lock:
                self._num_at_once -= 1


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    fake = FakeS3()

    class Handler(_Handler):
        s3 = fake

    server = _Server(("127.0.0.1", 0), Handler)
    fake.endpoint_url = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    try:
        yield fake
    finally:
        fake.heal()
        server.shutdown()
        server.server_close()
        serving.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # those of connections that stay open end with the process
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    s3: FakeS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _fault: Fault | None = None  # of the request at hand

    def setup(self) -> None:
        super().setup()
        with self.s3.lock:
            self.s3.num_connections += 1
            self.s3.connections.add(self.connection)

    def finish(self) -> None:
        with self.s3.lock:
            self.s3.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_HEAD(self) -> None:
        self._serve(self._get)

    def do_PUT(self) -> None:
        self._serve(self._put)

    def do_DELETE(self) -> None:
        self._serve(self._delete)

    def do_POST(self) -> None:
        self._serve(self._delete_objects)

    def _serve(self, answer: Callable[[str, bytes], None]) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        if url.path == "/credentials":
            assert self.s3.credentials is not None
            self._answer(200, self.s3.credentials())
            return
        with self.s3.request(self.command) as has_capacity:
            self._fault = fault = self.s3.fault_of(self.command)
            if isinstance(fault, Stall) and fault.num_bytes is None:
                self.s3.stall()
            elif self.s3.pause_seconds:
                threading.Event().wait(self.s3.pause_seconds)
            if isinstance(fault, Refuse):
                self._refuse(fault.status, fault.code)
            elif not has_capacity:
                self._refuse(503, "SlowDown")
            elif not self._is_accepted():
                self._refuse(403, "InvalidAccessKeyId")
            elif not self.s3.is_bucket_there:
                self._refuse(404, "NoSuchBucket")
            else:
                answer(url.path.removeprefix(f"/{BUCKET}").removeprefix("/"), body)

    def _is_accepted(self) -> bool:
        if self.s3.access_keys is None:
            return True
        found = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        return found is not None and found[1] in self.s3.access_keys

    def _get(self, name: str, _: bytes) -> None:
        if not name:
            self._list()
        elif name not in self.s3.objects:
            self._refuse(404, "NoSuchKey")
        else:
            self._answer(200, self.s3.objects[name])

    def _put(self, name: str, body: bytes) -> None:
        if "If-None-Match" in self.headers:
            if not self.s3.knows_conditions:
                self._refuse(501, "NotImplemented")
                return
            if name in self.s3.objects:
                self._refuse(412, "PreconditionFailed")
                return
        self.s3.objects[name] = body
        self._answer(200, b"")

    def _delete(self, name: str, _: bytes) -> None:
        self.s3.objects.pop(name, None)
        self._answer(204, b"")

    def _delete_objects(self, _: str, body: bytes) -> None:
        for name in re.findall(r"<Key>(.*?)</Key>", body.decode()):
            self.s3.objects.pop(name, None)
        self._answer(200, b"<DeleteResult></DeleteResult>")

    def _list(self) -> None:
        """Two at a time, so that there is more than one page of them."""
        query = parse_qs(urlsplit(self.path).query)
        prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
        names = sorted(name for name in self.s3.objects if name.startswith(prefix) and name > after)
        entries = [
            f"<Contents><Key>{name}</Key><Size>{len(self.s3.objects[name])}</Size></Contents>" for name in names[:2]
        ]
        more = f"<NextContinuationToken>{names[1]}</NextContinuationToken>" if len(names) > 2 else ""
        self._answer(200, f"<ListBucketResult>{''.join(entries)}{more}</ListBucketResult>".encode())

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode(), is_error=True)

    def _answer(self, status: int, body: bytes, *, is_error: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        match None if is_error else self._fault:
            case Truncate(num_bytes):
                self.wfile.write(body[:num_bytes])
                self.close_connection = True
            case TooMuch(num_bytes):
                self.wfile.write(body + b"x" * num_bytes)
            case Stall(int(num_bytes)):
                self.wfile.write(body[:num_bytes])
                self.wfile.flush()
                self.s3.stall()
                self.wfile.write(body[num_bytes:])
            case _:
                self.wfile.write(body)
