from __future__ import annotations

import pytest
from tests.byte_tokenizer import byte_tokenizer

from pagefall.messages import TokenIds
from pagefall.text.prefix_lengths import pinned_prefixes
from pagefall.text.requests import ChatMessage, ChatPrompt, PinRequest, Tool
from pagefall.text.tokenizer import Tokenizer

PROMPT = ChatPrompt(
    messages=(
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "Hi"),
        ChatMessage("assistant", "Hello"),
        ChatMessage("user", "Bye"),
    )
)
WANTS_A_USER = (
    "{% if messages[-1].role == 'system' %}{{ raise_exception('no user') }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
WITH_TOOLS = (
    "{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ messages[0].role }}"
)


def kept(tokenizer: Tokenizer, prompt: ChatPrompt, num_messages: int) -> str | None:
    """The text of the prefix, None if nothing is kept."""

    def encode(part: ChatPrompt) -> TokenIds:
        text = tokenizer.apply_chat_template(
            part.messages,
            tools=part.tools,
            add_generation_prompt=part.add_generation_prompt,
            continue_final_message=part.continue_final_message,
        )
        return tokenizer.encode(text, add_special_tokens=False)

    token_ids = encode(prompt)
    pins = pinned_prefixes(prompt, token_ids, [PinRequest(num_messages=num_messages, ttl_seconds=9.0)], encode)
    assert [seconds for _, seconds in pins] == [9.0] * len(pins)
    return tokenizer.decode(token_ids[: pins[0][0]]) if pins else None


@pytest.mark.parametrize(
    ("num_messages", "text"),
    [
        (1, "system: Be brief.\n"),
        (3, "system: Be brief.\nuser: Hi\nassistant: Hello\n"),
        (4, "system: Be brief.\nuser: Hi\nassistant: Hello\nuser: Bye\n"),
    ],
)
def test_a_prefix_goes_through_the_end_of_its_last_message(num_messages: int, text: str) -> None:
    assert kept(byte_tokenizer(), PROMPT, num_messages) == text


def test_a_template_that_wants_a_users_message_is_shown_one() -> None:
    # What any user's message begins with is common to all.
    assert kept(byte_tokenizer(WANTS_A_USER), PROMPT, 1) == "system: Be brief.\nuser: "


def test_what_stands_before_all_messages_is_a_prefix_too() -> None:
    prompt = ChatPrompt(messages=(ChatMessage("user", "Hi"),), tools=(Tool(name="weather"),))
    assert kept(byte_tokenizer(WITH_TOOLS), prompt, 0) == "weather\nuser: "
    assert kept(byte_tokenizer(), PROMPT, 0) is None  # a prompt that begins otherwise has nothing in common


def test_a_last_message_that_is_continued_is_kept_to_its_end() -> None:
    prompt = ChatPrompt(
        messages=(ChatMessage("user", "Hi"), ChatMessage("assistant", "Hel")),
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert kept(byte_tokenizer(), prompt, 2) == "user: Hi\nassistant: Hel"


def test_a_template_that_writes_no_such_conversation_keeps_nothing() -> None:
    template = "{% if messages | length < 3 %}{{ raise_exception('too short') }}{% endif %}{{ messages[0].content }}"
    assert kept(byte_tokenizer(template), PROMPT, 1) is None
