"""A GGUF file is unpacked once, whole or not at all, and is the same model afterwards."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch
from tests.tiny_models import make_tiny, make_tiny_gguf, make_tiny_tokenizer

from pagefall.config import Dtype, ModelConfig
from pagefall.errors import ModelError
from pagefall.model import gguf as gguf_module
from pagefall.model import prepare as prepare_module
from pagefall.model.gguf import cache_folder, find_unpacked, unpack
from pagefall.model.loader import load_weights
from pagefall.model.prepare import prepare
from pagefall.model.spec import inspect


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, and a `_write` that copies a model made beforehand and leaves a mark for every time."""
    template = make_tiny_tokenizer(make_tiny("llama", tmp_path / "template"))

    def write(gguf: Path, folder: Path, dtype: Dtype) -> None:
        with (gguf.parent / "made").open("a") as made:
            made.write("x")
        shutil.copytree(template, folder)

    monkeypatch.setattr(gguf_module, "_write", write)
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    return path


def num_made(gguf: Path) -> int:
    return len((gguf.parent / "made").read_text())


def test_a_second_start_makes_nothing(gguf: Path) -> None:
    assert find_unpacked(gguf, "auto") is None
    first = unpack(gguf, "auto")
    assert find_unpacked(gguf, "auto") == unpack(gguf, "auto") == first
    assert num_made(gguf) == 1
    assert [path.name for path in first.parent.iterdir() if not path.name.startswith(".")] == [first.name]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_cut_file_has_the_folder_made_again(gguf: Path, name: str) -> None:
    folder = unpack(gguf, "auto")
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert find_unpacked(gguf, "auto") is None
    assert unpack(gguf, "auto") == folder
    assert path.read_bytes() == whole
    assert num_made(gguf) == 2


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_has_the_folder_made_again(gguf: Path, name: str) -> None:
    folder = unpack(gguf, "auto")
    (folder / name).unlink()
    unpack(gguf, "auto")
    assert (folder / name).is_file()


def test_what_a_killed_process_left_half_made_is_not_used(gguf: Path) -> None:
    folder = unpack(gguf, "auto")
    partial = folder.rename(folder.with_name(f".{folder.name}.partial"))
    (partial / "config.json").write_text("{")
    assert (unpack(gguf, "auto") / "config.json").read_text() != "{"


def test_another_content_another_time_or_another_dtype_is_another_folder(gguf: Path) -> None:
    folders = {unpack(gguf, "auto"), unpack(gguf, "float32")}
    stat = gguf.stat()
    gguf.write_bytes(b"GGUF" + bytes(99) + b"x")
    os.utime(gguf, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    folders.add(unpack(gguf, "auto"))
    os.utime(gguf, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    folders.add(unpack(gguf, "auto"))
    assert len(folders) == 4


def test_two_that_start_at_once_make_one_folder(gguf: Path) -> None:
    # The lock belongs to the open file, so threads exclude each other by it as processes do.
    barrier = threading.Barrier(2)

    def start(_: int) -> Path:
        barrier.wait(10)
        return unpack(gguf, "auto")

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(start, range(2)))) == 1
    assert num_made(gguf) == 1


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(gguf: Path, cache: Path) -> None:
    cache.write_text("a file, not a folder")
    with pytest.raises(ModelError, match="Set PAGEFALL_CACHE_DIR"):
        unpack(gguf, "auto")


def test_a_full_disk_is_told_with_the_way_out_and_nothing_is_left(
    gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(gguf: Path, folder: Path, dtype: Dtype) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes(100))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf_module, "_write", write)
    with pytest.raises(ModelError, match=r"No space left on device\. Set PAGEFALL_CACHE_DIR"):
        unpack(gguf, "auto")
    assert [path.suffix for path in (cache / "models").iterdir()] == [".lock"]


def test_the_cache_folder_is_the_users_choice_then_xdgs_then_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PAGEFALL_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache/pagefall"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/pagefall")
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", "/own")
    assert cache_folder() == Path("/own")


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_an_unpacked_file_is_the_same_model_as_the_file(tmp_path: Path, cache: Path, dtype: Dtype) -> None:
    path = make_tiny_gguf(make_tiny("llama", tmp_path / "folder"), tmp_path / "tiny.gguf")
    config = ModelConfig(model_path=str(path), dtype=dtype, device="cpu")
    packed, prepared = inspect(config), prepare(config)
    assert packed.location.gguf_path == path
    assert Path(prepared.location.path).is_relative_to(cache)
    assert msgspec.structs.replace(prepared, location=packed.location) == packed
    read = dict(load_weights(prepared).named_parameters())
    expected = dict(load_weights(packed).named_parameters())
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], expected[name]) for name in expected)
    assert inspect(config) == prepared


def test_what_does_not_fit_into_memory_is_not_unpacked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_tiny_gguf(make_tiny("llama", tmp_path / "folder"), tmp_path / "tiny.gguf")
    monkeypatch.setattr(prepare_module, "free_host_memory", lambda: 1000)
    with pytest.raises(ModelError, match="for its weights"):
        prepare(ModelConfig(model_path=str(path), device="cpu"))
    assert not cache.exists()
