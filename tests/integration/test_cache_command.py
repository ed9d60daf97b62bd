"""`pagefall cache` on a real store of files, as a server leaves it, and while one is using it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.filled_store import NAMESPACE, PAGE_BYTES, fill, namespace, page
from tests.redis_servers import free_port, running

from pagefall.cache.namespace import Namespace
from pagefall.cli.main import main
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.registry import open_backend

OTHER = namespace(model_digest=b"\xff" * 32, page_size=32)
NAME, OTHER_NAME = NAMESPACE.digest().hex()[:16], OTHER.digest().hex()[:16]


class Store:
    """A folder with pages, and what `pagefall cache` says of it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def fill(self, of: Namespace, num_pages: int) -> Sequence[str]:
        async def fill_and_close() -> Sequence[str]:
            backend = await open_backend("file", {"path": str(self.folder)}, value_bytes=None)
            try:
                return await fill(backend, of, num_pages)
            finally:
                await backend.aclose()

        return asyncio.run(fill_and_close())

    def file(self, index: int, of: Namespace = NAMESPACE) -> Path:
        namespace, _, name = page(of, index)[0].partition("/")
        [path] = (self.folder / namespace).rglob(name)
        return path

    def run(self, *argv: str) -> tuple[int, str]:
        """The exit status, and what was written to standard output, or to standard error where the status is 2."""
        extra_config = msgspec.json.encode({"path": str(self.folder)}).decode()
        return self.run_bare(*argv, "--extra-config", extra_config)

    def run_bare(self, *argv: str) -> tuple[int, str]:
        status = main(["cache", *argv])
        captured = self._capsys.readouterr()
        assert (captured.err == "") == (status != 2)
        return status, captured.err if status == 2 else captured.out

    def stats(self) -> dict[str, dict[str, Any]]:
        status, text = self.run("stats", "--json")
        assert status == 0
        return {each["namespace" if "namespace" in each else "name"]: each for each in json.loads(text)["namespaces"]}


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Store:
    (tmp_path / "store").mkdir()
    return Store(tmp_path / "store", capsys)


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_stats_tell_each_namespace(store: Store) -> None:
    store.fill(NAMESPACE, 3)
    store.fill(OTHER, 1)
    os.utime(store.file(0), (1_700_000_000, 1_700_000_000))
    stats = store.stats()
    assert list(stats) == sorted([NAME, OTHER_NAME])
    assert stats[NAME]["num_pages"] == 3
    assert stats[NAME]["num_bytes"] > 3 * (HEADER_BYTES + PAGE_BYTES)
    assert stats[NAME]["oldest_use"] == 1_700_000_000
    assert stats[NAME]["manifest"]["architecture"] == NAMESPACE.architecture
    status, text = store.run("stats")
    assert status == 0
    assert str(store.folder) in text
    assert NAME in text


def test_the_folder_may_come_from_the_environment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.fill(NAMESPACE, 1)
    for variable in ("PAGEFALL_STORAGE_DIR", "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"):
        with monkeypatch.context() as environment:
            environment.setenv(variable, str(store.folder))
            status, text = store.run_bare("stats")
            assert status == 0
            assert NAME in text


def test_without_a_folder_one_line_says_where_to_name_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PAGEFALL_STORAGE_DIR", "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    status, text = store.run_bare("stats")
    assert status == 2
    assert "PAGEFALL_STORAGE_DIR" in text


def test_a_folder_that_is_not_there_is_told_and_not_made(store: Store) -> None:
    path = store.folder / "misspelt"
    assert store.run_bare("stats", "--extra-config", f'{{"path": "{path}"}}') == (
        2,
        f"pagefall: error: there is no folder {path}\n",
    )
    assert not path.exists()


def test_a_wrong_setting_is_told_in_one_line(store: Store) -> None:
    status, text = store.run_bare("stats", "--extra-config", '{"pth": "x"}')
    assert status == 2
    assert 'unknown field "pth"; did you mean "path"?' in text


def test_verify_finds_every_damaged_file_and_deletes_it_on_demand(store: Store) -> None:
    store.fill(NAMESPACE, 6)
    truncated, flipped, swapped, empty = (store.file(index) for index in range(4))
    truncated.write_bytes(truncated.read_bytes()[:-1])
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 4
    flipped.write_bytes(content)
    swapped.write_bytes(store.file(5).read_bytes())
    empty.write_bytes(b"")
    damaged = ["damaged 1 checksum", "damaged 1 length", "damaged 1 other key", "damaged 1 short"]

    status, text = store.run("verify")
    assert (status, words(text)[0], sorted(words(text)[1:])) == (1, "sound 3", damaged)
    status, text = store.run("verify", "--delete")
    assert (status, words(text)[-1]) == (1, "deleted 4")
    assert not truncated.exists()
    assert store.run("verify") == (0, "sound     3\n")


def test_verify_may_be_of_one_namespace(store: Store) -> None:
    store.fill(NAMESPACE, 1)
    store.fill(OTHER, 1)
    store.file(0).write_bytes(b"")
    assert store.run("verify", "--namespace", OTHER_NAME[:6]) == (0, "sound     2\n")
    assert store.run("verify", "--namespace", NAME[:6])[0] == 1


def test_clear_removes_one_namespace_or_all(store: Store) -> None:
    store.fill(NAMESPACE, 3)
    store.fill(OTHER, 1)
    status, text = store.run("clear", "--namespace", NAME)
    assert status == 0
    assert text.startswith(f"cleared namespace {NAME}: 4 values, 3.")
    assert list(store.stats()) == [OTHER_NAME]
    assert store.run("clear", "--all")[1].startswith("cleared all namespaces: 2 values")
    assert store.stats() == {}


def test_an_unknown_or_ambiguous_namespace_clears_nothing(store: Store) -> None:
    store.fill(NAMESPACE, 1)
    store.fill(OTHER, 1)
    status, text = store.run("clear", "--namespace", "xyz")
    assert (status, NAME in text, OTHER_NAME in text) == (2, True, True)
    names = [namespace(page_size=size).digest().hex()[:16] for size in range(1, 40)]
    twin = next(index for index, name in enumerate(names) if name[0] == NAME[0] and name != NAME)
    store.fill(namespace(page_size=twin + 1), 1)
    status, text = store.run("clear", "--namespace", NAME[0])
    assert status == 2
    assert "give more digits" in text
    assert len(store.stats()) == 3


def test_diff_names_the_fields_that_differ(store: Store) -> None:
    store.fill(NAMESPACE, 1)
    store.fill(OTHER, 1)
    status, text = store.run("diff", NAME, OTHER_NAME)
    assert status == 1
    assert words(text) == ["model_digest 0001020304050607 ffffffffffffffff", "page_size 16 32"]
    assert store.run("diff", NAME, NAME) == (0, "nothing differs: servers with these settings share pages\n")


def test_diff_compares_folders_that_have_one_namespace(store: Store, tmp_path: Path) -> None:
    store.fill(NAMESPACE, 1)
    (tmp_path / "other").mkdir()
    other = Store(tmp_path / "other", store._capsys)
    other.fill(OTHER, 1)
    status, text = store.run_bare("diff", str(store.folder), str(other.folder))
    assert (status, words(text)[-1]) == (1, "page_size 16 32")
    other.fill(NAMESPACE, 1)
    status, text = store.run_bare("diff", str(store.folder), str(other.folder))
    assert status == 2
    assert "needs one namespace" in text


def test_a_namespace_without_a_manifest_cannot_be_compared(store: Store) -> None:
    store.fill(NAMESPACE, 1)
    [manifest] = store.folder.rglob("namespace")
    manifest.unlink()
    status, text = store.run("diff", NAME, NAME)
    assert status == 2
    assert f"{NAME} has no sound manifest" in text
    assert store.stats()[NAME]["manifest"] is None


def test_a_store_in_use_may_be_looked_at_and_cleared(store: Store) -> None:
    """The other process sees the pages go."""

    async def use() -> None:
        backend = await open_backend("file", {"path": str(store.folder)}, value_bytes=None)
        keys = await fill(backend, NAMESPACE, 3)
        status, text = await asyncio.to_thread(store.run, "clear", "--all")
        assert (status, "4 values" in text) == (0, True)
        outcomes = await backend.get(keys, [memoryview(bytearray(HEADER_BYTES + PAGE_BYTES)) for _ in keys])
        assert {type(outcome).__name__ for outcome in outcomes} == {"Miss"}
        await backend.aclose()

    asyncio.run(use())


def extra_of(store: Store) -> str:
    return msgspec.json.encode({"path": str(store.folder), "min_free_bytes": 0}).decode()


def test_copy_moves_a_store_to_another_and_goes_on_where_it_ended(store: Store, tmp_path: Path) -> None:
    store.fill(NAMESPACE, 6)
    store.fill(OTHER, 1)
    damaged = store.file(0)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    other = Store(tmp_path / "other" / "store", store._capsys)
    status, text = store.run_bare("copy", str(store.folder), f"file:{extra_of(other)}")
    assert (status, words(text)) == (1, ["copied 8 7.5 KiB", "damaged 1 length"])
    assert {name: each["num_pages"] for name, each in other.stats().items()} == {NAME: 5, OTHER_NAME: 1}
    assert other.stats()[NAME]["manifest"] == store.stats()[NAME]["manifest"]
    assert other.run("verify")[0] == 0

    damaged.unlink()
    store.fill(NAMESPACE, 6)
    status, text = store.run_bare("copy", f"file:{extra_of(store)}", str(other.folder))
    assert (status, words(text)) == (0, ["copied 1 1.1 KiB", "there before 8"])


def test_copy_may_be_of_one_namespace(store: Store, tmp_path: Path) -> None:
    store.fill(NAMESPACE, 2)
    store.fill(OTHER, 1)
    other = Store(tmp_path / "other", store._capsys)
    assert store.run_bare("copy", str(store.folder), str(other.folder), "--namespace", OTHER_NAME[:6])[0] == 0
    assert list(other.stats()) == [OTHER_NAME]


def test_a_store_of_files_is_moved_to_redis_and_back(store: Store, tmp_path: Path) -> None:
    store.fill(NAMESPACE, 6)
    with running(tmp_path / "redis") as server:
        settings = tmp_path / "redis.json"
        settings.write_text(msgspec.json.encode({"url": server.url}).decode())
        status, text = store.run_bare("copy", str(store.folder), f"redis:@{settings}")
        assert (status, words(text)[0].split()[1]) == (0, "7")
        back = Store(tmp_path / "back", store._capsys)
        status, text = store.run_bare("copy", f'redis:{{"url": "{server.url}"}}', str(back.folder))
        assert (status, words(text)[0].split()[1]) == (0, "7")
    assert back.run("verify") == (0, "sound     7\n")
    assert back.file(3).read_bytes() == store.file(3).read_bytes()


def test_copy_says_which_store_cannot_be_used(store: Store, tmp_path: Path) -> None:
    status, text = store.run_bare("copy", str(tmp_path / "misspelt"), str(tmp_path / "other"))
    assert (status, text) == (2, f"pagefall: error: there is no folder {tmp_path}/misspelt\n")
    assert not (tmp_path / "other").exists()
    status, text = store.run_bare("copy", str(store.folder), "redis")
    assert status == 2
    assert "write redis:{...} with its settings, or ./redis if a folder is meant" in text
    status, text = store.run_bare("copy", "file:{", str(store.folder))
    assert (status, "FROM: not valid JSON" in text) == (2, True)
    status, text = store.run_bare("copy", str(store.folder), "flie:{}")
    assert (status, "TO: 'flie' is not one of" in text) == (2, True)
    status, text = store.run_bare("copy", f'redis:{{"url": "redis://127.0.0.1:{free_port()}"}}', str(store.folder))
    assert (status, text.count("\n")) == (2, 1)
