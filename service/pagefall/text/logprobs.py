"""Log-probabilities of token ids become log-probabilities of text."""

from __future__ import annotations

from pagefall.messages import TokenLogprob
from pagefall.text.requests import CandidateToken, TextLogprob
from pagefall.text.tokenizer import Tokenizer


def text_logprob(tokenizer: Tokenizer, token: TokenLogprob) -> TextLogprob:
    """`token` with the text and bytes of its chosen and most likely tokens."""

    def candidate(token_id: int, logprob: float) -> CandidateToken:
        return CandidateToken(token_id, tokenizer.token_text(token_id), tokenizer.token_bytes(token_id), logprob)

    return TextLogprob(
        chosen=candidate(token.token_id, token.logprob),
        top=tuple(candidate(token_id, logprob) for token_id, logprob in token.top),
        special=token.token_id in tokenizer.special_token_ids,
    )
