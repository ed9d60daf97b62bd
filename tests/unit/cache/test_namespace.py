from __future__ import annotations

import msgspec
import pytest

from pagefall.cache.namespace import Namespace

BASE = Namespace(
    model_digest=b"weights",
    architecture="LlamaForCausalLM",
    rope="theta=100000",
    compute_dtype="bfloat16",
    kv_dtype="bfloat16",
    page_size=16,
    layout="page_first",
)

OTHER_VALUES: dict[str, object] = {
    "model_digest": b"other weights",
    "architecture": "Qwen2ForCausalLM",
    "rope": "theta=10000",
    "compute_dtype": "float32",
    "kv_dtype": "float32",
    "page_size": 1,
    "layout": "layer_first",
    "kv_scales_digest": b"scales",
    "component": "sliding",
    "tp_rank": 1,
    "tp_size": 2,
    "format_version": 2,
}


def test_equal_namespaces_have_equal_digests_of_32_bytes() -> None:
    assert BASE.digest() == msgspec.structs.replace(BASE).digest()
    assert len(BASE.digest()) == 32


def test_every_field_is_varied_below() -> None:
    assert set(OTHER_VALUES) == set(Namespace.__struct_fields__)


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_every_field_changes_the_digest_and_is_named_as_the_difference(name: str) -> None:
    other = msgspec.structs.replace(BASE, **{name: OTHER_VALUES[name]})
    assert other.digest() != BASE.digest()
    assert BASE.differences(other) == (name,)


def test_a_value_cannot_move_into_the_next_field() -> None:
    one = msgspec.structs.replace(BASE, architecture="ab", rope="c")
    other = msgspec.structs.replace(BASE, architecture="a", rope="bc")
    assert one.digest() != other.digest()
    assert one.differences(other) == ("architecture", "rope")
