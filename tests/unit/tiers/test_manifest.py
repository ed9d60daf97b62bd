from __future__ import annotations

import msgspec
import pytest

from pagefall.cache.namespace import Namespace
from pagefall.tiers.manifest import decode_manifest, encode_manifest, manifest_key
from pagefall_storage import page_format
from pagefall_storage.protocol import Corrupt, Hit

NAMESPACE = Namespace(
    model_digest=bytes(range(32)),
    architecture="LlamaForCausalLM/0123456789abcdef",
    rope="{}",
    compute_dtype="bfloat16",
    kv_dtype="bfloat16",
    page_size=16,
    layout="page-first/planes 30x3x(64+64)",
)


def test_a_manifest_comes_back_as_it_was() -> None:
    key, value = encode_manifest(NAMESPACE)
    digest = NAMESPACE.digest()
    assert key == manifest_key(digest) == f"{digest.hex()[:16]}/namespace"
    assert page_format.verify(memoryview(value), key=digest, namespace=digest) == Hit()
    assert decode_manifest(memoryview(value)) == NAMESPACE


@pytest.mark.parametrize("cut", [0, 1, 127, 128, 129, -1])
def test_a_manifest_cut_short_is_corrupt(cut: int) -> None:
    _, value = encode_manifest(NAMESPACE)
    assert isinstance(decode_manifest(memoryview(value[:cut])), Corrupt)


def test_every_damaged_byte_is_found() -> None:
    _, value = encode_manifest(NAMESPACE)
    for index in (*range(112), *range(128, len(value))):  # the header's last bytes say nothing
        damaged = bytearray(value)
        damaged[index] ^= 1
        assert isinstance(decode_manifest(memoryview(damaged)), Corrupt), index


def test_a_manifest_under_another_namespaces_seal_is_corrupt() -> None:
    value = bytearray(encode_manifest(NAMESPACE)[1])
    other = msgspec.structs.replace(NAMESPACE, page_size=32).digest()
    page_format.seal(memoryview(value), key=other, namespace=other)
    assert decode_manifest(memoryview(value)) == Corrupt("other namespace")
