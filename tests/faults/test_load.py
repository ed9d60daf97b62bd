"""The load of the other tests notices what it is there to notice."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from tests.fake_backend import FakeBackend
from tests.faults.conftest import Truth
from tests.faults.load import DEADLINE_SECONDS, page_names, under_load
from tests.faults.rig import LoadedModel

from pagefall_storage import page_format
from pagefall_storage.protocol import GetOutcome, Hit, Key

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Blocking(FakeBackend):
    """Once `is_blocking`, nothing else goes on in this process while it reads."""

    is_blocking = False

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        if self.is_blocking:
            time.sleep(DEADLINE_SECONDS / 8)
        return await super().get(keys, into)


async def test_a_store_for_which_everybody_waits_is_noticed(loaded: LoadedModel, truth: Truth) -> None:
    async def block() -> None:
        store = Blocking()
        async with under_load(loaded, truth, store) as scene:
            store.is_blocking = True
            await scene.assert_one_wait()

    with pytest.raises(ExceptionGroup) as failed:
        await block()
    assert failed.group_contains(AssertionError, match="the neighbour waited too")


async def test_a_wrong_page_is_noticed(loaded: LoadedModel, truth: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    async def mix_up() -> None:
        store = FakeBackend()
        async with under_load(loaded, truth, store) as scene:
            monkeypatch.setattr(page_format, "verify", lambda value, *, key, namespace: Hit())
            names = page_names(loaded)
            for name, other in zip(names, reversed(names), strict=True):
                store.values[name] = store.values[other]
            await scene.load.go_on()

    with pytest.raises(ExceptionGroup) as failed:
        await mix_up()
    assert failed.group_contains(AssertionError, match="a wrong answer")
