from __future__ import annotations

import pytest
from tests.unit.api.fake_engine import FakeEngine, http_client

MODEL = "fake/model"
TURNS = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "sent", "here"),
    [
        ("/v1/responses", {"input": "Hi", "max_tokens": 5}, "max_output_tokens"),
        ("/v1/responses", {"input": "Hi", "messages": TURNS}, "input"),
        ("/v1/responses", {"input": "Hi", "response_format": {"type": "text"}}, "text"),
        ("/v1/chat/completions", {"messages": TURNS, "max_output_tokens": 5}, "max_completion_tokens"),
        ("/v1/chat/completions", {"messages": TURNS, "input": "Hi"}, "messages"),
        ("/v1/completions", {"prompt": "Hi", "messages": TURNS}, "prompt"),
    ],
)
async def test_what_other_endpoints_call_otherwise_is_said_by_its_name_here(
    path: str, sent: dict[str, object], here: str
) -> None:
    async with http_client(FakeEngine()) as client:
        answer = await client.post(path, json={"model": MODEL, **sent})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_parameter")
    assert f"called '{here}'" in error["message"]
