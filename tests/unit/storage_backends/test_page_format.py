"""The header and checksums of a page's value."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall_storage.page_format import HEADER_BYTES, seal, verify
from pagefall_storage.protocol import Corrupt, Hit

KEY, NAMESPACE = b"k" * 32, b"n" * 32
digests = st.binary(min_size=32, max_size=32)
payloads = st.binary(max_size=500)


def sealed(payload: bytes, *, key: bytes = KEY, namespace: bytes = NAMESPACE) -> bytearray:
    value = bytearray(b"\xaa" * HEADER_BYTES) + payload
    seal(memoryview(value), key=key, namespace=namespace)
    return value


def verified(value: bytes | bytearray, *, key: bytes = KEY, namespace: bytes = NAMESPACE) -> Hit | Corrupt:
    return verify(memoryview(value), key=key, namespace=namespace)


@given(payload=payloads, key=digests, namespace=digests)
def test_a_sealed_value_is_a_hit_and_keeps_its_payload(payload: bytes, key: bytes, namespace: bytes) -> None:
    value = sealed(payload, key=key, namespace=namespace)
    assert verified(value, key=key, namespace=namespace) == Hit()
    assert value[HEADER_BYTES:] == payload


@pytest.mark.parametrize("num_bytes", [0, 1, 200])
def test_every_flip_of_one_bit_is_caught(num_bytes: int) -> None:
    value = sealed(bytes(num_bytes))
    for bit in range(len(value) * 8):
        value[bit // 8] ^= 1 << bit % 8
        assert isinstance(verified(value), Corrupt), f"bit {bit}"
        value[bit // 8] ^= 1 << bit % 8
    assert verified(value) == Hit()


@settings(max_examples=200)
@given(payload=payloads, data=st.data())
def test_any_other_bytes_in_any_place_are_caught(payload: bytes, data: st.DataObject) -> None:
    value = sealed(payload)
    start = data.draw(st.integers(0, len(value) - 1))
    damage = data.draw(st.binary(min_size=1, max_size=64))
    damaged = (value[:start] + damage + value[start + len(damage) :])[: len(value)]
    assert (verified(damaged) == Hit()) == (damaged == value)


@given(payload=payloads, num_bytes=st.integers(0, 400))
def test_a_value_of_another_length_is_caught(payload: bytes, num_bytes: int) -> None:
    value = sealed(payload)
    assert isinstance(verified(value[:num_bytes]), Corrupt) or num_bytes >= len(value)
    assert verified(value + bytes(num_bytes + 1)) == Corrupt("length")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda value: value[: HEADER_BYTES - 1], "short"),
        (lambda value: b"", "short"),
        (lambda value: bytes(len(value)), "bad magic"),
        (lambda value: value[:9] + b"\xff" + value[10:], "damaged header"),
        (lambda value: value[: HEADER_BYTES - 1] + b"\x01" + value[HEADER_BYTES:], "damaged header"),
        (lambda value: value[:-1], "length"),
        (lambda value: value + b"\x00", "length"),
        (lambda value: value[:-1] + b"!", "checksum"),
        (lambda value: sealed(b"payload", key=b"K" * 32), "other key"),
        (lambda value: sealed(b"payload", namespace=b"N" * 32), "other namespace"),
    ],
)
def test_the_reason_says_what_is_wrong(damage: object, reason: str) -> None:
    assert callable(damage)
    assert verified(damage(sealed(b"payload"))) == Corrupt(reason)


@pytest.mark.parametrize(("key", "namespace"), [(b"short", NAMESPACE), (KEY, b"n" * 33)])
def test_sealing_needs_digests_of_32_bytes(key: bytes, namespace: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        sealed(b"", key=key, namespace=namespace)
