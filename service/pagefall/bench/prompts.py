"""Prompts that no server has seen before, in two forms: token ids, and text for servers that take nothing else."""

from __future__ import annotations

import random
from typing import Protocol

Prompt = list[int] | str

# Ids that are ordinary tokens in every vocabulary of 32k and more: special tokens and bytes lie below or far above.
FIRST_TOKEN_ID = 1_000
LAST_TOKEN_ID = 30_000

_COMMON_WORDS = """
    about above after again air along always animal answer apple arm ask away back ball bank base be bear beat bed
    before began bell best better between big bird black blue boat body book both box boy bread bring brother build
    burn business buy call car care carry case cat center chair change child city class clean clear close cold color
    come common cook corn country course cover cross cup cut dark day deep dog door down draw dream dress drive dry
    ear early earth east easy eat edge egg end enough even ever eye face fact fall family far farm fast father feel
    few field fight fill find fine fire fish five floor flower fly follow food foot force form forward four free
    friend front full game garden gave girl give glass go gold good grass great green ground group grow hair half
    hand happy hard hat head hear heart heat heavy help high hill hold hole home horse hot hour house hundred ice
    idea inch island join jump keep key kind king know lake land large last late laugh law lay lead learn leave left
    leg less letter life light like line list listen little live long look lost love low machine main make man map
    mark market meat meet middle mile milk mind minute money month moon morning mother mountain mouth move music name
"""
WORDS = tuple(_COMMON_WORDS.split())
"""One token each, with the space in front, in most vocabularies."""


class Prompts(Protocol):
    def make(self, num_tokens: int) -> Prompt:
        """A new prompt of `num_tokens` tokens that shares no head worth caching with any before."""


class TokenPrompts:
    """Random token ids, exactly as many as asked."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def make(self, num_tokens: int) -> list[int]:
        return self._rng.choices(range(FIRST_TOKEN_ID, LAST_TOKEN_ID), k=num_tokens)


class TextPrompts:
    """Random words, about as many tokens as asked: `tokens_per_word` is the server's own count for such a text."""

    def __init__(self, rng: random.Random, tokens_per_word: float) -> None:
        self._rng = rng
        self._tokens_per_word = tokens_per_word

    def make(self, num_tokens: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=max(1, round(num_tokens / self._tokens_per_word))))
