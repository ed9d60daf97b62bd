"""A host name of which a test says whether it has an address."""

from __future__ import annotations

import socket
from typing import Any, Final

import pytest

_getaddrinfo: Final = socket.getaddrinfo


class Names:
    """Stands before the system's resolver."""

    known: Final = "store.test"

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.num_asked = 0
        """While it is not known."""
        self._is_known = True
        patch.setattr(socket, "getaddrinfo", self._resolve)

    def forget(self) -> None:
        self._is_known = False

    def remember(self) -> None:
        self._is_known = True

    def _resolve(self, host: Any, *arguments: Any, **more: Any) -> Any:
        if host not in (self.known, self.known.encode()):
            return _getaddrinfo(host, *arguments, **more)
        if self._is_known:
            return _getaddrinfo("127.0.0.1", *arguments, **more)
        self.num_asked += 1
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
