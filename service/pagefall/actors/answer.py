"""One answer in the making: tokens in, deltas of text out."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from typing import Final

import msgspec

from pagefall.messages import FinishReason, PrefixReport, RequestOutput, TokenIds, TokenLogprob
from pagefall.text.detokenize import IncrementalDetokenizer
from pagefall.text.logprobs import text_logprob
from pagefall.text.requests import TextDelta, TextLogprob, Usage
from pagefall.text.stop import StopMatcher
from pagefall.text.tokenizer import Tokenizer

_NUM_TAIL_TOKENS: Final = 32
"""Of the prompt's end: enough to see a thought that the template has opened."""

_MAX_ECHOED: Final = 32
"""Log-probabilities of the prompt in a delta. With 20 candidates each they take 3 ms, on the loop."""


def prompt_tail(tokenizer: Tokenizer, prompt_token_ids: TokenIds) -> str:
    """See `TextDelta.prompt_tail`."""
    return tokenizer.decode(prompt_token_ids[-_NUM_TAIL_TOKENS:], skip_special_tokens=False)


class Answer:
    """Collects what the steps bring until it is taken: a slow reader gets fewer, larger deltas.

    It holds no more than the request's `max_tokens`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: TokenIds,
        stop: tuple[str, ...],
        kept_special_token_ids: Set[int] = frozenset(),
        *,
        echoed: str | None = None,
        echoes_logprobs: bool = False,
        num_pinned_tokens: int = 0,
    ) -> None:
        """`echoed`: the prompt as it stands before the answer; `echoes_logprobs`: so do its log-probabilities."""
        self.finish_reason: FinishReason | None = None
        """Set once the answer is complete, be it that a stop string was found in it."""
        self.all_token_ids: list[int] = []
        """Every token so far, but a stop token."""
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids, kept_special_token_ids)
        self._stop = StopMatcher(stop)
        self._num_prompt_tokens = len(prompt_token_ids)
        self._prompt_tail = prompt_tail(tokenizer, prompt_token_ids)
        self._num_pinned_tokens = num_pinned_tokens
        self._num_tokens = 0
        self._usage: Usage | None = None
        self._prefix: PrefixReport | None = None
        self._echoes_logprobs = echoes_logprobs
        self._first_token_id = int(prompt_token_ids[0])
        self._echo = echoed or ""
        self._echo_logprobs: list[TextLogprob] = []
        self._unread_echo: deque[TokenLogprob] = deque()
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TextLogprob] = []

    @property
    def is_cut(self) -> bool:
        """Whether it was ended before the model's own end of it."""
        return self.finish_reason == "abort" or self._stop.matched is not None

    @property
    def is_echoing(self) -> bool:
        """Whether the next delta has log-probabilities of the prompt, so that it takes its time to make."""
        return bool(self._unread_echo)

    def push(self, output: RequestOutput) -> None:
        """Adds what one step brought. After `finish_reason` is set nothing is added any more.

        A stop token, and tokens that a stop string swallows, are counted but not shown.
        """
        if self.finish_reason is not None:
            return
        self._prefix = output.prefix or self._prefix
        if self._echoes_logprobs and output.prefix is not None:
            self._push_echo(output.prompt_logprobs)
        ends_in_stop_token = output.finish_reason == "stop" and len(output.token_ids) > 0
        self._show(output, len(output.token_ids) - ends_in_stop_token)
        self._num_tokens += ends_in_stop_token and self._stop.matched is None
        if output.finish_reason is not None:
            self._text.append(self._stop.push(self._detokenizer.flush()))
            self._text.append(self._stop.flush())
        self.finish_reason = output.finish_reason if self._stop.matched is None else "stop"
        if self.finish_reason is not None:
            self._usage = Usage(
                prompt_tokens=self._num_prompt_tokens,
                completion_tokens=self._num_tokens,
                cached_tokens=output.cached_tokens,
                cached_tokens_by_tier=output.cached_tokens_by_tier,
            )

    def take(self) -> TextDelta | None:
        """What came since the last call, None if nothing did. The log-probabilities of a prompt come in pieces."""
        if not self._token_ids and self._usage is None:
            return None
        self._read_echo()
        if self._unread_echo:
            return self._take_echo()
        delta = TextDelta(
            text=self._echo + "".join(self._text),
            token_ids=tuple(self._token_ids),
            logprobs=(*self._echo_logprobs, *self._logprobs),
            finish_reason=self.finish_reason,
            usage=self._usage,
            prefix=self._prefix,
            prompt_tail=self._prompt_tail,
            num_pinned_tokens=self._num_pinned_tokens,
            stop_string=self._stop.matched,
        )
        self._told_of_prompt()
        self._text, self._token_ids, self._logprobs, self._usage = [], [], [], None
        return delta

    def _take_echo(self) -> TextDelta:
        """A delta without anything of the answer."""
        delta = TextDelta(
            text=self._echo,
            token_ids=(),
            logprobs=tuple(self._echo_logprobs),
            prefix=self._prefix,
            prompt_tail=self._prompt_tail,
            num_pinned_tokens=self._num_pinned_tokens,
        )
        self._told_of_prompt()
        return delta

    def _told_of_prompt(self) -> None:
        self._echo, self._echo_logprobs, self._prefix = "", [], None
        self._prompt_tail, self._num_pinned_tokens = "", 0

    def _read_echo(self) -> None:
        while self._unread_echo and len(self._echo_logprobs) < _MAX_ECHOED:
            self._echo_logprobs.append(text_logprob(self._tokenizer, self._unread_echo.popleft()))

    def _push_echo(self, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Of all the prompt; of none of it if the request has ended before that was computed."""
        if len(logprobs) < self._num_prompt_tokens - 1:
            return
        first = text_logprob(self._tokenizer, TokenLogprob(self._first_token_id, 0.0))
        self._echo_logprobs.append(msgspec.structs.replace(first, is_first=True))
        self._unread_echo.extend(logprobs)

    def _show(self, output: RequestOutput, num_tokens: int) -> None:
        """Adds the first `num_tokens` of the output, or those up to the one that completes a stop string."""
        for index in range(num_tokens):
            if self._stop.matched is not None:
                return
            self._num_tokens += 1
            self._token_ids.append(output.token_ids[index])
            self.all_token_ids.append(output.token_ids[index])
            self._text.append(self._stop.push(self._detokenizer.push(output.token_ids[index : index + 1])))
            if output.logprobs:
                self._logprobs.append(text_logprob(self._tokenizer, output.logprobs[index]))
