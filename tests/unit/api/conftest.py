from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.unit.api.fake_engine import FakeEngine, http_client


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(engine) as client:
        yield client
