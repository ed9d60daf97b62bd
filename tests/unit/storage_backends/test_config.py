"""From a JSON object to a backend's configuration."""

from __future__ import annotations

import msgspec
import pytest

from pagefall_storage.config import ByteSize, parse_config
from pagefall_storage.errors import StorageConfigError


class Config(msgspec.Struct, frozen=True, kw_only=True):
    path: str | None = None
    max_bytes: ByteSize | None = None
    num_threads: int = 4


def parse(**config: object) -> Config:
    return parse_config(config, Config, where="here")


@pytest.mark.parametrize(
    ("given", "num_bytes"),
    [
        (0, 0),
        (17, 17),
        (2e10, 20_000_000_000),
        ("20GB", 20_000_000_000),
        ("1.5 GiB", 3 * 2**29),
        ("7B", 7),
        ("3kB", 3000),
        ("3KB", 3000),
        ("3KiB", 3072),
        ("2mib", 2**21),
        (" 1TB ", 10**12),
    ],
)
def test_sizes_are_numbers_or_text_with_a_unit(given: object, num_bytes: int) -> None:
    assert parse(max_bytes=given).max_bytes == num_bytes


@pytest.mark.parametrize("given", [-1, 1.5, True, "20", "GB", "20 gigs", "-3GB", [], {}])
def test_what_is_no_size_is_refused_with_the_field_and_an_example(given: object) -> None:
    with pytest.raises(StorageConfigError, match=r"here: .*20GB.*max_bytes"):
        parse(max_bytes=given)


def test_an_unknown_field_is_refused_with_the_nearest_valid_one() -> None:
    with pytest.raises(StorageConfigError, match='here: unknown field "max_byte"; did you mean "max_bytes"'):
        parse(max_byte=1)


def test_an_unknown_field_like_no_other_is_refused_with_all_valid_ones() -> None:
    with pytest.raises(StorageConfigError, match="valid fields: path, max_bytes, num_threads"):
        parse(zzz=1)


def test_a_wrong_type_is_refused_with_the_field() -> None:
    with pytest.raises(StorageConfigError, match=r"here: .*num_threads"):
        parse(num_threads="4")


def test_absent_fields_have_their_defaults() -> None:
    assert parse() == Config()
