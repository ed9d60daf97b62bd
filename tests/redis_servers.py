"""Real Redis servers for tests: started in a folder of the test's own, and gone when it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

_STARTS_WITHIN_SECONDS = 20.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class RedisServer:
    """One process. It listens on `port` of this machine, if that is not 0, and at `socket_path`."""

    def __init__(
        self, folder: Path, *options: str, port: int | None = None, command: str = "redis-server", arguments: str = ""
    ) -> None:
        """`options` are lines of its configuration, `arguments` those of the command line."""
        binary = shutil.which(command)
        if binary is None:
            raise FileNotFoundError(f"{command} is missing; on Debian and Ubuntu: apt-get install redis-server")
        self.port = free_port() if port is None else port
        self.socket_path = folder / "redis.sock"
        self._config = folder / "redis.conf"
        self._command = [binary, str(self._config), *arguments.split()]
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f"port {self.port}", f"dir {folder}", "bind 127.0.0.1", f"logfile {folder}/log", *options)
        self._config.write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def until_it_answers(self, admin: Redis) -> None:
        async with asyncio.timeout(_STARTS_WITHIN_SECONDS):
            while True:
                try:
                    await admin.execute_command("PING")
                except (RedisError, OSError):
                    await asyncio.sleep(0.01)
                else:
                    return


def nothing_saved(socket_path: Path) -> Sequence[str]:
    """Options of a server that keeps everything in memory and can be reached through a socket file too."""
    return ('save ""', "appendonly no", f"unixsocket {socket_path}", "enable-debug-command yes")


@asynccontextmanager
async def running(folder: Path, *options: str, port: int | None = None) -> AsyncIterator[tuple[RedisServer, Redis]]:
    """A server that answers, and a client that may do everything with it."""
    folder.mkdir(parents=True, exist_ok=True)
    server = RedisServer(folder, *nothing_saved(folder / "redis.sock"), *options, port=port)
    admin = Redis(unix_socket_path=str(server.socket_path))
    server.start()
    try:
        await server.until_it_answers(admin)
        yield server, admin
    finally:
        await admin.aclose()
        server.kill()
