"""Traffic made up for a diagnosis. Four characters are a token, whose id is these characters."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pagefall.insight.diagnosis.diagnose import diagnose
from pagefall.insight.diagnosis.observations import Capacities, Observation, Traffic
from pagefall.insight.diagnosis.report import Cause, Diagnosis, Loss
from pagefall.messages import MissedPages, PrefixReport, TokenIds, TokenSource
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt

PAGE_SIZE: Final = 16

_TEXT: Final = (
    "the server keeps pages of keys and values in tiers and looks for longest prefix every prompt that comes it then "
    "what was seen before never computes again unless store is slow or somebody has changed only one letter"
)
_WORDS: Final = _TEXT.split()


def words(rng: random.Random, num_words: int) -> str:
    """A text that no other one is likely to share more than a few words with."""
    return " ".join(rng.choice(_WORDS) for _ in range(num_words))


def encoded(text: str) -> TokenIds:
    data = text.encode()
    return np.frombuffer(data + b" " * (-len(data) % 4), dtype="<u4").copy()


def chat(*contents: str, **fields: Any) -> Observation:
    """System, user, assistant, user, ... as a template would write them."""
    roles = ["system", *("user", "assistant") * len(contents)]
    messages = tuple(ChatMessage(role, content) for role, content in zip(roles, contents, strict=False))
    tools = "" if fields.get("tools") is None else repr(fields["tools"])
    text = tools + "".join(f"<{message.role}>\n{message.content}</>\n" for message in messages) + "<assistant>"
    return Observation(token_ids=encoded(text), prompt=ChatPrompt(messages=messages), **fields)


def text(content: str, **fields: Any) -> Observation:
    return Observation(token_ids=encoded(content), prompt=TextPrompt(content), **fields)


def counted(
    observation: Observation, *misses: MissedPages, sources: Mapping[TokenSource, int] | None = None
) -> Observation:
    """With a report, as a server has it. `sources` are what came from a tier; the rest was computed."""
    num_tokens = len(observation.token_ids)
    by_source: dict[TokenSource, int] = {"device": 0, "host": 0, "storage": 0, "computed": 0, "unreached": 0}
    by_source |= dict(sources or {})
    by_source["computed"] = num_tokens - sum(by_source.values())
    return Observation(
        token_ids=observation.token_ids,
        prompt=observation.prompt,
        cache_salt=observation.cache_salt,
        report=PrefixReport(
            page_size=PAGE_SIZE,
            num_prompt_tokens=num_tokens,
            num_tokens_by_source=by_source,
            num_known_tokens=num_tokens - by_source["computed"],
            misses=misses,
        ),
    )


def missed(reason: Any, num_tokens: int, **fields: Any) -> MissedPages:
    return MissedPages(
        reason=reason, first_page=0, num_pages=-(-num_tokens // PAGE_SIZE), num_tokens=num_tokens, **fields
    )


def diagnosed(observations: Sequence[Observation], *, show_text: bool = True, **facts: Any) -> Diagnosis:
    return diagnose(
        Traffic(observations=observations, page_size=PAGE_SIZE, **{"capacities": Capacities(), **facts}),
        show_text=show_text,
    )


def causes(diagnosis: Diagnosis) -> list[Cause]:
    return [loss.cause for loss in diagnosis.losses]


def the_loss(diagnosis: Diagnosis, cause: Cause) -> Loss:
    [found] = [loss for loss in diagnosis.losses if loss.cause == cause]
    return found
