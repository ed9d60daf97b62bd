"""The characters in which a prompt and the path that it left differ."""

from __future__ import annotations

from typing import Final

import msgspec

from pagefall.insight.diagnosis.alignment import common_head
from pagefall.insight.prompt_text import PromptText, PromptTokenizer, characters
from pagefall.messages import Divergence, TokenIds

_WINDOW_TOKENS: Final = 48
"""As far as a `Divergence` tells what the path has."""

_SNIPPET_CHARACTERS: Final = 60

_NEAR_CHARACTERS: Final = 24
"""Where a text differs so shortly after the tokens do, it is why they do: what follows decides how text is cut."""


class Snippet(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 60 characters of text on each side of the point. `before` is the same in both. `other` is what the known
    path has from there on: None where it ended at the point. Never a part of a character.
    """

    before: str
    prompt: str
    other: str | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """`character` of the prompt's text is the first that differs, or at which the known path ends.

    `is_same_text`: no character differs, or none near: it was only cut into other tokens. Then `character` is where
    the first of these begins.
    """

    character: int
    is_same_text: bool
    snippet: Snippet


def difference(
    divergence: Divergence, prompt: PromptText, token_ids: TokenIds, tokenizer: PromptTokenizer
) -> Difference:
    """Between the prompt of `token_ids` and the path of `divergence`."""
    at = divergence.token_index
    begin = prompt.character_of(at)
    if not divergence.has_other:
        return Difference(character=begin, is_same_text=False, snippet=_snippet(prompt, begin, None))
    window = divergence.window_start
    # Both decoded from the same token on: if that begins within a character, both begin with the same nonsense.
    ours = characters(tokenizer, token_ids[window : at + _WINDOW_TOKENS])
    theirs = characters(tokenizer, divergence.other_token_ids)
    shared = len(characters(tokenizer, token_ids[window:at]))
    same = common_head(theirs, ours)
    first_ends = max(
        len(characters(tokenizer, token_ids[window : at + 1])),
        len(characters(tokenizer, divergence.other_token_ids[: at + 1 - window])),
    )
    differs = same < min(len(ours), len(theirs))
    is_same_text = first_ends <= same and not (differs and same - shared <= _NEAR_CHARACTERS)
    point = shared if is_same_text else same
    character = min(begin + point - shared, len(prompt.text))
    return Difference(
        character=character, is_same_text=is_same_text, snippet=_snippet(prompt, character, theirs[point:] or None)
    )


def _snippet(prompt: PromptText, character: int, other: str | None) -> Snippet:
    return Snippet(
        before=prompt.text[max(0, character - _SNIPPET_CHARACTERS) : character],
        prompt=prompt.text[character : character + _SNIPPET_CHARACTERS],
        other=None if other is None else other[:_SNIPPET_CHARACTERS],
    )
