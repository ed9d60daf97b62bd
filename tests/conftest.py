"""Fixtures every test may use."""

from __future__ import annotations

import os

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported, and for the servers that tests start: several processes that each compute with every
    # core get in each other's way, and are many times slower than with one core each.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
