"""Opening the store that a name stands for, all of it or as much as there is."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.unit.storage_backends.plug_ins import install
from tests.unit.storage_backends.stores import get, put, stored_keys

from pagefall.tiers.guarded_stack import open_guarded
from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.memory import MemoryBackend
from pagefall_storage.protocol import Hit, Stored
from pagefall_storage.stacked import Stacked
from pagefall_storage.testing import page_keys

pytestmark = pytest.mark.anyio

KEYS: Final = page_keys(2)

DOWN_UNTIL_ITS_FILE_IS_THERE: Final = """
from pathlib import Path
from pagefall_storage.errors import StorageError
from pagefall_storage.memory import MemoryBackend

class Mine(MemoryBackend):
    num_closed = 0

    async def aclose(self):
        Mine.num_closed += 1

async def open_mine(config, *, value_bytes):
    if not Path(config["path"]).exists():
        raise StorageError("the disk is not there")
    return Mine()
"""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the plug-in `mine` needs to be open. It is not there."""
    monkeypatch.delitem(sys.modules, "plug_in_with_a_disk", raising=False)
    install(tmp_path, "my-plug-in", "plug_in_with_a_disk", DOWN_UNTIL_ITS_FILE_IS_THERE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "disk"


async def open_it(name: str, config: dict[str, object]) -> object:
    return await open_guarded(name, config, value_bytes=100, deadline_seconds=2.0)


async def test_one_store_is_itself() -> None:
    assert type(await open_it("memory", {})) is MemoryBackend


async def test_a_member_that_is_down_joins_when_it_can_be_opened(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pagefall.tiers"):
        stack = await open_it("memory,mine", {"mine": {"path": str(disk)}})
    assert isinstance(stack, Stacked)
    assert "the disk is not there" in caplog.text
    assert await put(stack, KEYS[:1]) == [Stored()]
    assert await get(stack, KEYS[:1]) == [Hit()]
    disk.touch()
    assert await put(stack, KEYS[1:]) == [Stored()]
    await stack._fills.wait_until_done()
    assert await stored_keys(stack.members[1]) == set(KEYS)
    await stack.aclose()


async def test_where_every_member_is_down_the_stack_is(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = disk.parent / "another"
    folder.mkdir()
    install(folder, "other-plug-in", "other_plug_in_with_a_disk", DOWN_UNTIL_ITS_FILE_IS_THERE, name="other")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(StorageError, match="the disk is not there"):
        await open_it("mine,other", {"mine": {"path": str(disk)}, "other": {"path": str(disk)}})


async def test_a_member_that_can_never_be_opened_refuses_the_stack_and_the_others_are_closed(disk: Path) -> None:
    disk.touch()
    with pytest.raises(StorageConfigError, match='storage backend "memory": unknown field "max"'):
        await open_it("mine,memory", {"mine": {"path": str(disk)}, "memory": {"max": 1}})
    assert sys.modules["plug_in_with_a_disk"].Mine.num_closed == 1
