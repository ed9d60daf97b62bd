"""Finding and opening backends by name, plug-ins included."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.storage_backends.plug_ins import PLUG_IN, install

from pagefall_storage.errors import StorageConfigError, UnknownBackendError
from pagefall_storage.memory import MemoryBackend
from pagefall_storage.registry import known_backends, open_backend
from pagefall_storage.stacked import Stacked
from pagefall_storage.throttle import Throttled

pytestmark = pytest.mark.anyio


def test_built_in_backends_and_plug_ins_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "my-plug-in", "plug_in_known", "raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert {"file", "memory", "mine"} <= set(known_backends())
    assert list(known_backends()) == sorted(known_backends())


async def test_a_built_in_backend_is_opened_by_its_name() -> None:
    store = await open_backend("memory", {"max_bytes": "1kB"}, value_bytes=None)
    assert isinstance(store, MemoryBackend)
    assert (await store.usage()).max_bytes == 1000


async def test_a_plug_in_is_opened_with_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "my-plug-in", "plug_in_opened", PLUG_IN)
    monkeypatch.syspath_prepend(tmp_path)
    store = await open_backend("mine", {"a": 1}, value_bytes=7)
    assert type(store).__name__ == "Mine"
    assert store.opened_with == ({"a": 1}, 7)  # type: ignore[attr-defined]


async def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownBackendError, match=r'unknown storage backend "nope"; known: .*file.*memory'):
        await open_backend("nope", {}, value_bytes=None)


@pytest.mark.parametrize(
    ("module", "source"),
    [("plug_in_broken", "import no_such_module"), ("plug_in_raises", "1 / 0"), ("plug_in_empty", "")],
)
async def test_a_plug_in_that_cannot_be_loaded_is_named(
    module: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "my-plug-in", module, source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownBackendError, match=r'"mine" of my-plug-in 1.5 cannot be loaded: \w+Error') as caught:
        await open_backend("mine", {}, value_bytes=None)
    assert "\n" not in str(caught.value)


async def test_two_plug_ins_of_one_name_are_refused_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "plug-in-a", "plug_in_a", PLUG_IN)
    install(tmp_path, "plug-in-b", "plug_in_b", PLUG_IN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StorageConfigError, match=r"plug-in-a 1.5, plug-in-b 1.5|plug-in-b 1.5, plug-in-a 1.5"):
        await open_backend("mine", {}, value_bytes=None)


async def test_a_plug_in_cannot_take_the_place_of_a_built_in_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "my-plug-in", "plug_in_memory", PLUG_IN, name="memory")
    monkeypatch.syspath_prepend(tmp_path)
    assert type(await open_backend("memory", {}, value_bytes=None)) is MemoryBackend


async def test_throttle_puts_any_backend_behind_a_link() -> None:
    config = {"throttle": {"bytes_per_second": 20e6, "latency_seconds": 0.2}}
    store = await open_backend("memory", config, value_bytes=None)
    assert isinstance(store, Throttled)
    assert "throttled to 20 MB/s, 0.2 s latency" in store.description
    assert "throttle" in config  # the caller's configuration stays as it was


@pytest.mark.parametrize(
    ("throttle", "message"),
    [
        (3, "throttle: not an object"),
        ({"bytes_per_second": 0}, "throttle: .*bytes_per_second"),
        ({"latency_seconds": -1}, "throttle: .*latency_seconds"),
        ({"latency": 1}, 'throttle: unknown field "latency"; did you mean "latency_seconds"'),
    ],
)
async def test_a_throttle_that_makes_no_sense_is_refused(throttle: object, message: str) -> None:
    with pytest.raises(StorageConfigError, match=message):
        await open_backend("memory", {"throttle": throttle}, value_bytes=None)


async def test_names_with_commas_are_one_store_nearest_first(tmp_path: Path) -> None:
    file = {"path": str(tmp_path), "min_free_bytes": 0, "throttle": {"latency_seconds": 0.1}}
    config = {"file": file, "memory": {"max_bytes": "1kB"}}
    store = await open_backend("memory, file", config, value_bytes=None)
    assert isinstance(store, Stacked)
    assert store.description.startswith("memory of this process, up to 1000 bytes, then files in ")
    assert isinstance(store.members[1], Throttled)
    await store.aclose()


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("file,nope", {}, r'unknown storage backend "nope"; known: .*file.*memory'),
        ("file,", {}, 'unknown storage backend ""'),
        ("memory,memory", {}, "each may be there once"),
        ("file,memory", {"path": "/x"}, r'"path" is none of them; write \{"file": \{...\}, "memory": \{...\}\}'),
        ("file,memory", {"memory": 3}, 'the settings of "memory" are not an object'),
        ("memory,file", {"file": {"pth": 1}}, 'storage backend "file": unknown field "pth"'),
    ],
)
async def test_a_stack_that_makes_no_sense_is_refused(name: str, config: dict[str, object], message: str) -> None:
    with pytest.raises(StorageConfigError, match=message):
        await open_backend(name, config, value_bytes=None)


async def test_members_opened_already_are_closed_when_a_later_one_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    async def note(store: MemoryBackend) -> None:
        closed.append(store)

    monkeypatch.setattr(MemoryBackend, "aclose", note)
    (tmp_path / "file").touch()
    with pytest.raises(StorageConfigError):
        await open_backend("memory,file", {"file": {"path": str(tmp_path / "file")}}, value_bytes=None)
    assert len(closed) == 1
