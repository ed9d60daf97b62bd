"""Real Redis servers for tests, each in a folder of its own, gone when the test ends."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_READY_WITHIN_SECONDS = 20.0


def free_port() -> int:
    """Below 55535, for a cluster's nodes talk to each other at a port 10000 above their own."""
    while True:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port: int = listener.getsockname()[1]
        if port < 55535:
            return port


class RedisServer:
    """One process, which listens on `port` of this machine and at `socket_path`. `admin` may do everything."""

    def __init__(self, folder: Path, *options: str, arguments: tuple[str, ...] = ()) -> None:
        """`options` are lines of its configuration file, `arguments` more of the command line."""
        binary = shutil.which("redis-server")
        if binary is None:
            raise FileNotFoundError("redis-server is missing; on Debian and Ubuntu: apt-get install redis-server")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.socket_path = folder / "redis.sock"
        self.admin = redis.Redis(unix_socket_path=str(self.socket_path), retry=Retry(NoBackoff(), 0))
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [binary, str(folder / "redis.conf"), *arguments]
        lines = (f"port {self.port}", "bind 127.0.0.1", f"unixsocket {self.socket_path}", f"dir {folder}", *options)
        (folder / "redis.conf").write_text("\n".join((*lines, 'save ""', f"logfile {folder}/log")) + "\n")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it answers. It is empty: nothing is ever saved."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until(self._answers)

    def kill(self) -> None:
        """Also where it is frozen, or not running."""
        self.admin.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            return bool(self.admin.ping())
        except redis.AuthenticationError:
            return True


def until(is_so: Callable[[], object], *, seconds: float = _READY_WITHIN_SECONDS) -> None:
    """Blocks until `is_so()`. A lost connection, as when a server changes its role, says that it is not so yet."""
    ends_at = time.monotonic() + seconds
    while True:
        with suppress(redis.ConnectionError):
            if is_so():
                return
        assert time.monotonic() < ends_at, "not within the time it may take"
        time.sleep(0.01)


@contextmanager
def running(folder: Path, *options: str, arguments: tuple[str, ...] = ()) -> Iterator[RedisServer]:
    server = RedisServer(folder, *options, arguments=arguments)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def running_cluster(folder: Path, *, num_nodes: int = 2) -> Iterator[list[RedisServer]]:
    """Primaries that share the slots, in equal ranges."""
    with ExitStack() as stack:
        options = ("cluster-enabled yes", "cluster-announce-ip 127.0.0.1")
        nodes = [stack.enter_context(running(folder / str(i), *options)) for i in range(num_nodes)]
        for i, node in enumerate(nodes):
            first, end = (16384 * j // num_nodes for j in (i, i + 1))
            node.admin.execute_command("CLUSTER ADDSLOTSRANGE", first, end - 1)
            node.admin.execute_command("CLUSTER SET-CONFIG-EPOCH", i + 1)
            node.admin.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0].port)
        for node in nodes:
            until(partial(_knows, node, num_nodes))
        yield nodes


@contextmanager
def running_sentinel(folder: Path, master: RedisServer, *options: str, service: str) -> Iterator[RedisServer]:
    """One Sentinel, enough for itself to call a silent master down."""
    monitor = f"sentinel monitor {service} 127.0.0.1 {master.port} 1"
    soon = f"sentinel down-after-milliseconds {service} 300"
    with running(folder, monitor, soon, *options, arguments=("--sentinel",)) as sentinel:
        yield sentinel


def _knows(node: RedisServer, num_nodes: int) -> bool:
    """Whether the node knows who has which slots."""
    is_ok = node.admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok"
    return is_ok and len(node.admin.execute_command("CLUSTER SLOTS")) == num_nodes
