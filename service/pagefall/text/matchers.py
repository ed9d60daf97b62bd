"""llguidance's objects, and the limits under which they are made.

Used by the server and by the process that tries grammars out, which therefore agree. Imports nothing heavy.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer


class VocabularyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a matcher needs to know of a model. `tokenizer_json`: the file of that name, as text.

    `vocab_size`: the width of the logits. `eos_token_ids`: what may end an answer, at least one.
    """

    tokenizer_json: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class UnusableGrammarError(Exception):
    """The message says why, in llguidance's words or ours."""


_LIMITS: Final = LLParserLimits(step_max_items=20_000, max_lexer_states=100_000, verbose_errors=False)
"""llguidance's, but for fewer items of a parser a step (50,000) and less memory for the states of a lexer (250,000)."""

_NUM_WALKS: Final = 3
_WALK_LENGTH: Final = 12

_TREE_TOO_WIDE: Final = "Current row has"


def load_vocabulary(facts: VocabularyFacts) -> LLTokenizer:
    """Takes a quarter of a second of CPU time for 49k tokens. Raises `UnusableGrammarError` for a tokenizer that
    llguidance does not know.
    """
    try:
        # A tokenizer may have more tokens than the model has logits; those are cut off the masks later.
        return LLTokenizer(facts.tokenizer_json, n_vocab=facts.vocab_size, eos_token=list(facts.eos_token_ids))
    except ValueError as error:
        raise UnusableGrammarError(f"this model's tokenizer is not supported: {error}") from error


def make_matcher(vocabulary: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the start. Leaves the GIL to others. Raises `UnusableGrammarError`."""
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise UnusableGrammarError(_reason(matcher))
    return matcher


def allowed_tokens(matcher: LLMatcher) -> npt.NDArray[np.int64]:
    """Ids in rising order. Empty if the matcher has failed, and nowhere else."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return np.empty(0, dtype=np.int64) if matcher.is_error() else np.flatnonzero(np.unpackbits(bits, bitorder="little"))


def rehearse(matcher: LLMatcher) -> None:
    """Writes the beginnings of a few random answers. Raises `UnusableGrammarError` where one fails: some grammars
    compile and allow nothing, or explode at their first token.
    """
    chosen = random.Random(0)
    for _ in range(_NUM_WALKS):
        walker = matcher.deep_copy()
        for _ in range(_WALK_LENGTH):
            allowed = allowed_tokens(walker)
            if not len(allowed):
                raise UnusableGrammarError(_reason(walker))
            if walker.is_stopped() or not walker.consume_token(int(allowed[chosen.randrange(len(allowed))])):
                break
        if walker.is_error():
            raise UnusableGrammarError(_reason(walker))


def _reason(matcher: LLMatcher) -> str:
    """One line."""
    text = matcher.get_error().replace("<non-verbose/>", "").strip()
    if _TREE_TOO_WIDE in text:
        return "too many alternatives at one place (an object may have a few hundred optional properties)"
    if "limits." in text or "fuel exhausted" in text:
        return "it is too complex to be compiled"
    if not text or text.startswith("NoExtension"):
        return "no text satisfies it"
    return " ".join(text.split())[:300]
