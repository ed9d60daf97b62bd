"""What is said of the backends that are installed."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from tests.unit.storage_backends.plug_ins import PLUG_IN, install

from pagefall_storage.about import About, about, described
from pagefall_storage.config import config_schema
from pagefall_storage.file import FileConfig, open_file
from pagefall_storage.installed import Installed, installed_backends

DESCRIBED_PLUG_IN = """
import msgspec
from pagefall_storage.about import described

class MyConfig(msgspec.Struct):
    '''`size`: how large.'''
    size: int = 3

@described(config_type=MyConfig, capabilities={"shared", "durable"})
async def open_mine(config, *, value_bytes): ...
"""


def named(name: str) -> list[Installed]:
    return [each for each in installed_backends() if each.name == name]


def test_built_in_backends_are_of_pagefall_and_say_what_they_can_do() -> None:
    for name in ("file", "memory", "redis", "s3"):
        [it] = named(name)
        assert (it.distribution, it.version, it.problem) == ("pagefall", version("pagefall"), None)
        assert it.about.config_type is not None
        assert it.about.config_type.__doc__
    [memory] = named("memory")
    assert memory.about.capabilities == ("evicts",)


def test_a_plug_in_is_of_its_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "my-plug-in", "plug_in_described", DESCRIBED_PLUG_IN)
    monkeypatch.syspath_prepend(tmp_path)
    [it] = named("mine")
    assert (it.distribution, it.version, it.problem) == ("my-plug-in", "1.5", None)
    assert it.about.capabilities == ("durable", "shared")
    assert it.about.config_type is not None
    assert config_schema(it.about.config_type)["properties"] == {"size": {"type": "integer", "default": 3}}


def test_a_plug_in_may_say_nothing_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "my-plug-in", "plug_in_silent", PLUG_IN)
    monkeypatch.syspath_prepend(tmp_path)
    [it] = named("mine")
    assert (it.about, it.problem) == (About(), None)


def test_a_plug_in_that_cannot_be_imported_is_there_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "my-plug-in", "plug_in_without_its_client", "import no_such_client")
    monkeypatch.syspath_prepend(tmp_path)
    [it] = named("mine")
    assert it.distribution == "my-plug-in"
    assert it.problem is not None
    assert "ModuleNotFoundError: No module named 'no_such_client'" in it.problem
    assert named("file")[0].problem is None


def test_names_that_clash_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "plug-in-c", "plug_in_c", PLUG_IN)
    install(tmp_path, "plug-in-d", "plug_in_d", PLUG_IN)
    install(tmp_path, "plug-in-e", "plug_in_e", PLUG_IN, name="file")
    monkeypatch.syspath_prepend(tmp_path)
    assert ["several distributions" in (it.problem or "") for it in named("mine")] == [True, True]
    own, other = named("file")
    assert (own.distribution, own.problem) == ("pagefall", None)
    assert (other.distribution, other.problem) == ("plug-in-e", "not used: Pagefall's own has this name")


def test_described_leaves_a_factory_as_it_is() -> None:
    assert about(open_file).config_type is FileConfig
    assert about(print) == About()

    class Config(msgspec.Struct):
        pass

    def factory() -> int:
        return 3

    assert described(config_type=Config)(factory) is factory
    assert factory() == 3


def test_a_schema_tells_sizes_limits_and_that_nothing_else_is_allowed() -> None:
    schema = config_schema(FileConfig)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["num_threads"] == {"type": "integer", "minimum": 1, "maximum": 64, "default": 4}
    size = schema["properties"]["max_bytes"]["anyOf"][0]
    assert size["title"] == "bytes"
    assert size["type"] == ["integer", "string"]
