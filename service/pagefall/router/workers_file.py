"""`--workers-file`: workers as a file names them, taken over whenever it changes.

    # one URL a line                   [{"url": "http://a:30000", "name": "a"}, "http://b:30000"]     or JSON
    http://a:30000

A file that cannot be read or understood, or is empty, changes nothing: it may be half written. `[]` names no worker.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from pagefall.errors import ConfigError, RequestError
from pagefall.router.worker_urls import WorkerSpec, worker_spec
from pagefall.router.workers import WorkerRegistry

_log = logging.getLogger("pagefall.router")

_LOOK_SECONDS: Final = 1.0
"""The whole file is read each time: it is small, and times of change are coarse or, of links, another file's."""

_MAX_BYTES: Final = 1 << 20


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    name: str | None = None


class WorkersFile:
    """Adds and removes the workers that the file names; those from elsewhere it leaves alone."""

    def __init__(self, path: str, registry: WorkerRegistry) -> None:
        self._path = Path(path)
        self._registry = registry
        self._seen: bytes | None = None
        self._trouble: str | None = None

    def read_first(self) -> None:
        """Raises `ConfigError` where the file is of no use."""
        try:
            content = _read(self._path)
            specs = parse_workers(content)
        except ValueError as error:
            raise ConfigError(f"--workers-file {self._path}: {error}") from error
        self._seen = content
        self._apply(specs)

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Takes over what has changed since the last time. What is wrong with the file is logged, once."""
        try:
            content = await anyio.to_thread.run_sync(_read, self._path)
            if content == self._seen:
                self._trouble = None
                return
            specs = parse_workers(content)
        except ValueError as error:
            if str(error) != self._trouble:
                _log.warning("%s changes nothing: %s", self._path, error)
            self._trouble = str(error)
            return
        self._seen, self._trouble = content, None
        self._apply(specs)

    def _apply(self, specs: list[WorkerSpec]) -> None:
        wanted = {spec.worker_id for spec in specs}
        for worker in self._registry.workers:
            if worker.origin == "file" and worker.worker_id not in wanted and not worker.is_leaving:
                self._registry.remove(worker)
        for spec in specs:
            known = self._registry.get(spec.worker_id)
            if known is not None and not known.is_leaving:
                continue  # an operator may have drained it: the file does not take it back
            try:
                self._registry.add(spec, "file")
            except RequestError as error:
                _log.warning("%s: %s", self._path, error)


def parse_workers(content: bytes) -> list[WorkerSpec]:
    """Raises `ValueError` that says what is wrong, and in which line or entry."""
    text = content.strip()
    if not text:
        raise ValueError("the file is empty; write [] to name no worker")
    if text[:1] == b"[":
        try:
            entries = msgspec.json.decode(text, type=list[str | _Entry])
        except msgspec.MsgspecError as error:
            raise ValueError(f"no JSON list of URLs, or of objects with 'url' and 'name': {error}") from error
        named = [(entry, None) if isinstance(entry, str) else (entry.url, entry.name) for entry in entries]
        places = [f"entry {index}" for index in range(len(named))]
    else:
        try:
            lines = text.decode().splitlines()
        except UnicodeDecodeError as error:
            raise ValueError("not a UTF-8 text file") from error
        rows = [(number, line.split("#", 1)[0].strip()) for number, line in enumerate(lines, 1)]
        named = [(line, None) for _, line in rows if line]
        places = [f"line {number}" for number, line in rows if line]
        if not named:
            raise ValueError("the file names no worker; write [] if that is meant")
    specs: dict[str, WorkerSpec] = {}
    for (url, name), place in zip(named, places, strict=True):
        try:
            spec = worker_spec(url, name)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        specs.setdefault(spec.worker_id, spec)
    return list(specs.values())


def _read(path: Path) -> bytes:
    """Raises `ValueError`."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {(error.strerror or str(error)).lower()}") from error
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    return content
