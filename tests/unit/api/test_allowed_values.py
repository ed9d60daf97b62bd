from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from pagefall.api.allowed_values import allowed_values
from pagefall.api.decode import decode_body
from pagefall.api.wire_chat import ChatCompletionRequest
from pagefall.errors import RequestError


class Cat(msgspec.Struct, tag="cat", tag_field="kind"):
    mood: Literal["sleepy", "hungry"] | None = None


class Dog(msgspec.Struct, tag="dog", tag_field="kind"):
    ball: str = ""


class House(msgspec.Struct):
    pets: list[Cat | Dog]
    by_name: dict[str, Cat | Dog] = {}
    first: Annotated[Cat | Dog | None, msgspec.Meta(description="the oldest")] = None
    level: Literal[1, 2] | str = 1
    other: int = msgspec.field(default=0, name="otherwise")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pets[...].kind", ("cat", "dog")),
        ("by_name[...].kind", ("cat", "dog")),
        ("first.kind", ("cat", "dog")),
        ("pets[...].mood", ("hungry", "sleepy")),
        ("level", ("1", "2")),
        ("otherwise", ()),
        ("pets[...].nothing", ()),
        ("pets[...]", ()),
        ("nothing.at.all", ()),
        ("", ()),
    ],
)
def test_what_may_stand_at_a_path(path: str, expected: tuple[str, ...]) -> None:
    assert tuple(sorted(allowed_values(House, path))) == expected


def test_who_sends_another_value_is_told_which_there_are() -> None:
    body = b'{"model": "m", "messages": [], "response_format": {"type": "xml"}}'
    with pytest.raises(RequestError, match=r"type': invalid value 'xml'\. Allowed: 'text', 'json_obj"):
        decode_body(body, ChatCompletionRequest)
