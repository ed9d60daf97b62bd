"""The traffic of a small service, 40 users of which each asks some questions, with the time in its system prompt.

`python -m tests.timestamped_service URL head` sends it with the time at the prompt's head, where it spoils everything
behind it; `... URL last-message` with the time in the last user message, where it spoils nothing.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, get_args

import httpx

TimePlace = Literal["head", "last-message"]

NUM_USERS: Final = 40
NUM_TURNS: Final = 3

_OPENING: Final = "You assist Meadow & Sons. "
_PRODUCTS: Final = ("mower", "hedge trimmer", "chain saw", "leaf blower", "tiller")
_RULES: Final = (
    "The {name} is rented by the day; a deposit of {deposit} is due when it is handed over and paid back with it.",
    "Repairs of the {name} take {days} days, longer in spring; the customer is told when it is ready.",
    "Spare parts of the {name} are in stock for {years} years after the last one was sold.",
)
_SENTENCES: Final = (
    "I have a large garden behind the house.",
    "What do I have to pay to rent a {name} for a weekend?",
    "My neighbour told me about your shop.",
    "The old {name} that I have does not start any more.",
    "How long does it take you to repair one?",
    "It has to be ready before my daughter comes to visit.",
    "Do you still have parts for a model that is some years old?",
    "I could bring it to you in the afternoon.",
    "Is there a deposit, and when do I get it back?",
    "A new {name} would be too expensive for me.",
)


def system_prompt() -> str:
    """Some 400 tokens that are the same for everybody."""
    rules = [
        rule.format(name=name, deposit=40 + 15 * index, days=3 + index, years=8 + index)
        for index, name in enumerate(_PRODUCTS)
        for rule in _RULES
    ]
    return "\n".join([*rules, "Never promise a date that is not in these rules. Answer in one or two sentences."])


@dataclass(frozen=True)
class Sent:
    """What all answers' usage adds up to."""

    num_prompt_tokens: int
    num_cached_tokens: int

    @property
    def hit_rate(self) -> float:
        return self.num_cached_tokens / self.num_prompt_tokens


def send(url: str, model: str, place: TimePlace, *, num_users: int, num_turns: int, max_tokens: int) -> Sent:
    """Every user's first question, then every user's second, four at a time."""
    began = datetime(2026, 3, 14, 9, 0, 0)  # noqa: DTZ001 - as services write it, without a zone
    histories: list[list[dict[str, str]]] = [[] for _ in range(num_users)]
    usages: list[Any] = []
    with httpx.Client(base_url=url, timeout=600) as client, ThreadPoolExecutor(4) as pool:
        for turn in range(num_turns):

            def ask(user: int, turn: int = turn) -> Any:
                now = began + timedelta(seconds=37 * user + 1800 * turn)
                messages = _messages(histories[user], user, turn, f"The time is {now:%Y-%m-%d %H:%M:%S}.", place)
                body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
                response = client.post("/v1/chat/completions", json=body)
                answer = response.raise_for_status().json()
                histories[user] = [
                    *messages[1:],
                    {"role": "assistant", "content": answer["choices"][0]["message"]["content"]},
                ]
                return answer["usage"]

            usages += pool.map(ask, range(num_users))
    return Sent(
        sum(usage["prompt_tokens"] for usage in usages),
        sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
    )


def _messages(
    history: Sequence[dict[str, str]], user: int, turn: int, time: str, place: TimePlace
) -> list[dict[str, str]]:
    rng = random.Random(1000 * user + turn)
    sentences = rng.sample(_SENTENCES, 3)
    question = " ".join(sentence.format(name=rng.choice(_PRODUCTS)) for sentence in sentences)
    system = f"{_OPENING}{time if place == 'head' else ''}\n{system_prompt()}"
    if place == "last-message":
        question = f"{question}\n({time})"
    return [{"role": "system", "content": system}, *history, {"role": "user", "content": question}]


def main(argv: Sequence[str]) -> int:
    url, place = argv
    assert place in get_args(TimePlace)
    model = httpx.get(f"{url}/v1/models").raise_for_status().json()["data"][0]["id"]
    which: TimePlace = "head" if place == "head" else "last-message"
    sent = send(url, model, which, num_users=NUM_USERS, num_turns=NUM_TURNS, max_tokens=8)
    sys.stdout.write(
        f"{NUM_USERS} users, {NUM_TURNS} turns, the time at {place}: {sent.num_cached_tokens:,} of "
        f"{sent.num_prompt_tokens:,} prompt tokens were cached: {sent.hit_rate:.1%}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
