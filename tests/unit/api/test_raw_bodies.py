"""Bodies that were broken on the way, by chance or on purpose: each is answered, and the next request is not harmed."""

from __future__ import annotations

import json
from functools import cache

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.api.fake_engine import MODEL, WORDS, FakeEngine

from pagefall.api.app import create_app
from pagefall.config import HttpConfig

pytestmark = pytest.mark.anyio

TURN = [{"role": "user", "content": [{"type": "text", "text": "안녕 👋"}]}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": [1, "x"]}}}}
WHOLE = {
    "/v1/chat/completions": {"model": MODEL, "messages": TURN, "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/completions": {"prompt": ["a", "b"], "n": 2, "echo": True, "logit_bias": {"5": -1.5}, "stop": ["x"]},
    "/v1/messages": {"model": MODEL, "max_tokens": 9, "messages": TURN, "stop_sequences": ["x"]},
    "/v1/responses": {"model": MODEL, "input": TURN, "text": {"format": {"type": "text"}}},
    "/tokenize": {"messages": TURN},
    "/detokenize": {"tokens": [1, 2]},
}
PATCHES = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.integers(0, 6),
        st.one_of(
            st.binary(max_size=4),
            st.sampled_from(
                [
                    b"null",
                    b"1e400",
                    b"-1",
                    b"[",
                    b"{}",
                    b'"',
                    b"\\ud800",
                    b"\xff",
                    b'"n":',
                    b"[" * 5000,
                    b"9" * 5000,
                    b"true",
                ]
            ),
        ),
    ),
    min_size=1,
    max_size=4,
)


@cache
def transport() -> httpx.ASGITransport:
    """One server for all bodies, which must survive every one of them."""
    return httpx.ASGITransport(create_app(FakeEngine(), HttpConfig()))


def broken(body: bytes, patches: list[tuple[int, int, bytes]]) -> bytes:
    for at, num_dropped, inserted in patches:
        start = at % (len(body) + 1)
        body = body[:start] + inserted + body[start + num_dropped :]
    return body


@given(path=st.sampled_from(sorted(WHOLE)), patches=PATCHES)
@settings(max_examples=300, deadline=None)
async def test_a_broken_body_is_answered_and_harms_no_other(path: str, patches: list[tuple[int, int, bytes]]) -> None:
    async with httpx.AsyncClient(transport=transport(), base_url="http://server") as client:
        response = await client.post(
            path, content=broken(json.dumps(WHOLE[path], ensure_ascii=False).encode(), patches)
        )
        assert response.status_code in (200, 400, 404), response.text
        if response.status_code != 200:
            assert response.json()["error"]["message"]
        after = await client.post("/v1/completions", json={"prompt": "Hi"})
        assert after.json()["choices"][0]["text"] == "".join(WORDS)
