from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.unit.api.fake_engine import MODEL, FakeEngine, http_client

from pagefall.errors import RequestError

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"model": MODEL, "prompt": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1]},
}
MORE = BASE | {
    RESPONSES: {"model": MODEL, "input": "Hi"},
    MESSAGES: {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
}


async def refused(client: httpx.AsyncClient, path: str, fields: dict[str, Any], *, status: int = 400) -> dict[str, Any]:
    response = await client.post(path, json=BASE[path] | fields)
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        ({"temperature": 2.1}, "<= 2"),
        ({"temperature": -0.1}, ">= 0"),
        ({"temperature": "hot"}, "`float"),
        ({"top_p": 1.01}, "<= 1"),
        ({"top_p": -1}, ">= 0"),
        ({"top_k": -2}, ">= -1"),
        ({"top_k": 1.5}, "`int"),
        ({"min_p": 2}, "<= 1"),
        ({"presence_penalty": 2.5}, "<= 2"),
        ({"frequency_penalty": -2.5}, ">= -2"),
        ({"repetition_penalty": 0}, "> 0"),
        ({"logit_bias": {"5": 101}}, "<= 100"),
        ({"logit_bias": {"five": 1}}, "`int"),
        ({"logit_bias": {"500": 1}}, "500"),
        ({"logit_bias": [1]}, "`object"),
        ({"seed": 2**63}, "<= 9223372036854775807"),
        ({"seed": "x"}, "`int"),
        ({"n": 0}, ">= 1"),
        ({"n": 129}, "<= 128"),
        ({"max_tokens": -1}, ">="),
        ({"max_tokens": 10**30}, "<="),
        ({"max_tokens": True}, "`int"),
        ({"stop": ""}, ">= 1"),
        ({"stop": 5}, "`str"),
        ({"stop": ["x"] * 65}, "<= 64"),
        ({"stop_token_ids": [500]}, "500"),
        ({"stop_token_ids": 5}, "`array"),
        ({"ignore_eos": "yes"}, "`bool"),
        ({"cache_salt": 5}, "`str"),
        ({"priority": 0.5}, "`int"),
        ({"stream": "true"}, "`bool"),
        ({"stream_options": {"include_usage": True}}, "'stream' is true"),
        ({"model": 5}, "`str"),
    ],
)
async def test_a_wrong_value_names_its_field_and_the_fix(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], fix: str
) -> None:
    error = await refused(client, path, fields)
    [param] = fields
    assert error["param"] == param
    assert param in error["message"]
    assert fix in error["message"]
    assert error["type"] == "invalid_request_error"
    assert "$" not in error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": 1}, "logprobs"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"max_completion_tokens": 4, "max_tokens": 5}, "max_tokens"),
        (CHAT, {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "Hi"}, "messages"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": [{"content": "Hi"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}, {"role": 5}]}, "messages[1].role"),
        (CHAT, {"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "messages[0].content[0].type",
        ),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls[0]"),
        (CHAT, {"messages": [{"role": "user", "content": "refuse"}]}, "messages"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": [""]}, "prompt[0]"),
        (TEXT, {"prompt": ["a", ""]}, "prompt[1]"),
        (TEXT, {"prompt": [[1], []]}, "prompt[1]"),
        (TEXT, {"prompt": [[]]}, "prompt[0]"),
        (TEXT, {"prompt": [1, "a"]}, "prompt"),
        (TEXT, {"prompt": ["a", 1]}, "prompt[1]"),
        (TEXT, {"prompt": ["a", [1]]}, "prompt[1]"),
        (TEXT, {"prompt": [500]}, "prompt"),
        (TEXT, {"prompt": [-1]}, "prompt[0]"),
        (TEXT, {"prompt": [[1], [2, 500]]}, "prompt[1]"),
        (TEXT, {"prompt": [1.5]}, "prompt[0]"),
        (TEXT, {"prompt": None}, "prompt"),
        (TEXT, {"prompt": ["a"] * 1025}, "prompt"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (TEXT, {"prompt": ["a"] * 9, "n": 128}, "n"),
        (TEXT, {"echo": 1}, "echo"),
        (TEXT, {"logprobs": 21}, "logprobs"),
        (TEXT, {"logprobs": True}, "logprobs"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": None}, "prompt"),
        ("/detokenize", {"tokens": [500]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
async def test_a_wrong_value_names_its_place(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    assert (await refused(client, path, fields))["param"] == param


UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    *((path, fields) for path in (CHAT, TEXT) for fields in ({"min_tokens": 3},)),
    *((path, {"skip_special_tokens": False}) for path in (CHAT, TEXT)),
    *((path, {"include_stop_str_in_output": True}) for path in (CHAT, TEXT)),
    (TEXT, {"no_stop_trim": True}),
    *((path, {"lora_path": "x"}) for path in (CHAT, TEXT)),
    (CHAT, {"modalities": ["text", "audio"]}),
    (CHAT, {"audio": {"voice": "x"}}),
    (CHAT, {"prediction": {"type": "content", "content": "x"}}),
    (CHAT, {"moderation": {"model": "m"}}),
    (CHAT, {"verbosity": "low"}),
    (CHAT, {"web_search_options": {}}),
    (TEXT, {"best_of": 2}),
    (TEXT, {"suffix": "end"}),
]


@pytest.mark.parametrize(("path", "fields"), UNSUPPORTED)
async def test_what_would_change_the_answer_and_is_not_supported_is_refused_by_name(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    error = await refused(client, path, fields)
    [param] = fields
    assert error["param"] == param
    assert error["code"] in ("unsupported_parameter", "unsupported_value")
    assert param in error["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *((path, {param: None}) for path, fields in UNSUPPORTED for param in fields),
        (CHAT, {"tools": [], "tool_choice": "none", "functions": [], "function_call": "none"}),
        (CHAT, {"n": 1, "response_format": {"type": "text"}, "modalities": ["text"], "parallel_tool_calls": True}),
        (CHAT, {"verbosity": "medium", "stream": False}),
        (TEXT, {"n": 1, "best_of": 1, "echo": False, "suffix": ""}),
        *(
            (path, {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "min_tokens": 0})
            for path in (CHAT, TEXT)
        ),
        *((path, {"safety_identifier": "s", "prompt_cache_key": "k"}) for path in (CHAT, TEXT)),
        *((path, {"stream": True, "stream_options": {"include_obfuscation": False}}) for path in (CHAT, TEXT)),
    ],
)
async def test_what_changes_nothing_is_accepted(client: httpx.AsyncClient, path: str, fields: dict[str, Any]) -> None:
    assert (await client.post(path, json=BASE[path] | fields)).status_code == 200


@pytest.mark.parametrize(
    ("path", "name", "nearest"),
    [
        (CHAT, "temprature", "temperature"),
        (CHAT, "max_token", "max_tokens"),
        (TEXT, "prompts", "prompt"),
        ("/tokenize", "promt", "prompt"),
        ("/tokenize", "xyzzy", None),
    ],
)
async def test_a_misspelt_field_is_refused_with_the_nearest_known_name(
    client: httpx.AsyncClient, path: str, name: str, nearest: str | None
) -> None:
    error = await refused(client, path, {name: 1})
    hint = f" Did you mean '{nearest}'?" if nearest else ""
    assert error["message"] == f"Unrecognized request argument supplied: {name}.{hint}"
    assert error["param"] == name


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("name", ["typical_p", "xtc_probability", "prompt_logprobs", "use_beam_search"])
async def test_a_field_of_another_engine_that_would_change_the_answer_is_refused(
    client: httpx.AsyncClient, path: str, name: str
) -> None:
    error = await refused(client, path, {name: 1})
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"xyzzy": 1, "return_token_ids": False, "typical_p": None}),
        (CHAT, {"messages": [{"role": "user", "content": "Hi", "id": "m1"}]}),
        (
            CHAT,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"ttl": "5m"}}]}
                ]
            },
        ),
        (TEXT, {"messages": [], "x_team": "a", "parallel_tool_calls": True, "speed": "fast"}),
        (CHAT, {f"x_{number}": number for number in range(50)}),
    ],
)
async def test_an_unknown_field_that_is_harmless_is_ignored(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    assert (await client.post(path, json=BASE[path] | fields)).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"chat_template": "{{ messages }}"}),
        (CHAT, {"enable_thinking": False}),
        (CHAT, {"thinking": {"type": "disabled"}}),
        (CHAT, {"max_output_tokens": 9}),
        (CHAT, {"stop_sequences": ["x"]}),
        (CHAT, {"echo": True}),
        (CHAT, {"suffix": "end"}),
        (TEXT, {"max_completion_tokens": 9}),
        (TEXT, {"messages": [{"role": "user", "content": "Hi"}]}),
        (RESPONSES, {"n": 2}),
        (RESPONSES, {"logit_bias": {"5": 1}}),
        (RESPONSES, {"stop_token_ids": [5]}),
        (RESPONSES, {"max_completion_tokens": 9}),
        (RESPONSES, {"guided_json": {"type": "object"}}),
        (MESSAGES, {"presence_penalty": 1}),
        (MESSAGES, {"stop": "x"}),
        (MESSAGES, {"parallel_tool_calls": False}),
    ],
)
async def test_a_field_that_another_endpoint_heeds_is_refused_where_it_would_be_ignored(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    [name] = fields
    for value, status in ((fields[name], 400), (None, 200)):
        response = await client.post(path, json=MORE[path] | {name: value})
        assert response.status_code == status, response.text
        if status == 400:
            assert f"'{name}'" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/input_tokens"])
async def test_the_fields_of_the_request_may_be_sent_where_its_prompt_is_counted(
    client: httpx.AsyncClient, path: str
) -> None:
    body = MORE[path.rpartition("/")[0]] | {"temperature": 0.5, "stream": True, "max_tokens": 9, "max_output_tokens": 9}
    del body["max_output_tokens" if "messages" in path else "max_tokens"]
    assert (await client.post(path, json=body)).status_code == 200


async def test_more_unknown_fields_than_can_be_compared_are_refused(client: httpx.AsyncClient) -> None:
    error = await refused(client, CHAT, {f"x_{number}": number for number in range(51)})
    assert (error["param"], error["code"]) == ("x_0", "unknown_parameter")


@pytest.mark.parametrize(("path", "missing"), [(CHAT, "messages"), (TEXT, "prompt"), ("/detokenize", "tokens")])
async def test_a_missing_field_is_named(client: httpx.AsyncClient, path: str, missing: str) -> None:
    response = await client.post(path, json={})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, missing)
    assert error["code"] == "missing_required_parameter"


@pytest.mark.parametrize("path", BASE)
async def test_another_models_name_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    error = await refused(client, path, {"model": "gpt-4"}, status=404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert MODEL in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (TEXT, "prompt")])
async def test_a_prompt_past_the_context_is_refused_with_the_numbers(path: str, param: str, stream: bool) -> None:
    async with http_client(FakeEngine(context_length=3)) as client:
        fields = {"max_tokens": 1000, "stream": stream}
        error = await refused(client, path, fields)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "3 tokens" in error["message"]
    assert "1000" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_says_when_to_come_back(client: httpx.AsyncClient, engine: FakeEngine, stream: bool) -> None:
    engine.refusal = RequestError(
        "The queue is full.", status=503, type="service_unavailable_error", code="queue_full", retry_after_seconds=2
    )
    response = await client.post(CHAT, json=BASE[CHAT] | {"stream": stream})
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert response.json()["error"] == {
        "message": "The queue is full.",
        "type": "service_unavailable_error",
        "param": None,
        "code": "queue_full",
    }
