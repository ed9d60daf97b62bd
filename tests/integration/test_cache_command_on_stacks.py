"""`pagefall cache` on stacked stores: what is in any of them, each checked by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.filled_store import NAMESPACE, fill, page
from tests.unit.storage_backends.plug_ins import install

from pagefall.cli.main import main
from pagefall_storage.protocol import Key
from pagefall_storage.registry import open_backend

OTHER_FILES = """
from pagefall_storage.file import open_file

async def open_mine(config, *, value_bytes):
    return await open_file(config, value_bytes=value_bytes)
"""


class Stores:
    """Two folders, `near` and `far`, which the stack `file,mine` is made of."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.near, self.far = folder / "near", folder / "far"
        self._capsys = capsys

    def fill(self, *folders: Path, num_pages: int) -> None:
        async def fill_all() -> None:
            for folder in folders:
                backend = await open_backend("file", {"path": str(folder), "min_free_bytes": 0}, value_bytes=None)
                await fill(backend, NAMESPACE, num_pages)
                await backend.aclose()

        asyncio.run(fill_all())

    def damage(self, folder: Path, index: int) -> None:
        path = self.file(folder, page(NAMESPACE, index)[0])
        content = bytearray(path.read_bytes())
        content[-1] ^= 4
        path.write_bytes(content)

    def file(self, folder: Path, key: Key) -> Path:
        namespace, _, name = key.partition("/")
        [path] = (folder / namespace).rglob(name)
        return path

    def run(self, *argv: str, stack: str = "file,mine") -> tuple[int, Sequence[str]]:
        config = {"file": {"path": str(self.near)}, "mine": {"path": str(self.far)}}
        status = main(["cache", *argv, "--storage-backend", stack, "--extra-config", json.dumps(config)])
        captured = self._capsys.readouterr()
        return status, [" ".join(line.split()) for line in (captured.out + captured.err).splitlines()]


@pytest.fixture
def stores(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Stores:
    (tmp_path / "plug-in").mkdir()
    install(tmp_path / "plug-in", "my-plug-in", "plug_in_of_other_files", OTHER_FILES)
    monkeypatch.syspath_prepend(tmp_path / "plug-in")
    stores = Stores(tmp_path, capsys)
    stores.fill(stores.near, num_pages=2)
    stores.fill(stores.far, num_pages=4)
    return stores


def test_stats_count_a_page_once(stores: Stores) -> None:
    status, text = stores.run("stats", "--json")
    assert status == 0
    document = json.loads("".join(text))
    [namespace] = document["namespaces"]
    assert namespace["num_pages"] == 4
    assert namespace["manifest"]["architecture"] == NAMESPACE.architecture
    assert str(stores.near) in document["store"]
    assert str(stores.far) in document["store"]


def test_verify_checks_each_store_and_deletes_only_what_is_damaged_in_it(stores: Stores) -> None:
    stores.damage(stores.near, 0)
    stores.damage(stores.far, 3)
    status, text = stores.run("verify", "--delete")
    assert status == 1
    counts = ["damaged 1 checksum", "deleted 1"]
    assert [line for line in text if "files in" not in line] == ["sound 2", *counts, "sound 4", *counts]
    assert stores.file(stores.far, page(NAMESPACE, 0)[0]).exists()
    assert stores.run("verify")[0] == 0


def test_verify_of_a_namespace_that_only_one_store_has(stores: Stores) -> None:
    assert stores.run("clear", "--all", stack="file,mine")[0] == 0
    stores.fill(stores.far, num_pages=1)
    status, text = stores.run("verify", "--namespace", NAMESPACE.digest().hex()[:6])
    assert status == 0
    assert [line for line in text if "files in" not in line] == ["sound 0", "sound 2"]


def test_clear_clears_all_of_them(stores: Stores) -> None:
    status, text = stores.run("clear", "--all")
    assert (status, text[0].split(",")[0]) == (0, "cleared all namespaces: 5 values")
    for folder in (stores.near, stores.far):
        assert not any(len(path.name) == 64 for path in folder.rglob("*"))


def test_settings_of_no_member_and_missing_folders_are_told(stores: Stores) -> None:
    status, [error] = stores.run("stats", stack="file,memory")
    assert status == 2
    assert '"mine" is none of them; write {"file": {...}, "memory": {...}}' in error
    stores.near = stores.near / "misspelt"
    assert stores.run("stats") == (2, [f"pagefall: error: there is no folder {stores.near}"])
    assert stores.run("stats", stack="file,nope")[1][0].startswith("pagefall: error: --storage-backend: 'nope' is not")
