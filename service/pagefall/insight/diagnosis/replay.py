"""The same traffic with its texts changed: what an infinite cache would have given then.

Changed text has no tokens, and a diagnosis has no tokenizer. So prompts are compared by blocks of characters, as long
as a page of tokens is on average, and characters are counted as tokens at each prompt's own rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pagefall.insight.diagnosis.ceiling import Keys, PrefixHasher, num_known_blocks, seed_of
from pagefall.insight.diagnosis.observations import Observation, Section

Sections = tuple[Section, ...]
"""A prompt in its pieces."""

Mend = Callable[[Sections], Sections]
"""A change of a prompt's texts. It returns what it was given where it finds nothing to change."""

_SEPARATOR: Final = "\x02"


class TextReplay:
    """Prompts as text. It keeps the keys of texts it has seen, so that a change costs what it changes."""

    def __init__(self, observations: Sequence[Observation], prompts: Sequence[Sections], page_size: int) -> None:
        """`prompts[i]` are the pieces of `observations[i]`."""
        self.prompts = prompts
        self._num_tokens = np.array([len(each.token_ids) for each in observations], dtype=np.int64)
        self._seeds = [seed_of(each.cache_salt) for each in observations]
        texts = [_text(prompt) for prompt in prompts]
        num_characters = np.array([max(1, len(text)) for text in texts], dtype=np.int64)
        self.tokens_per_character: npt.NDArray[np.float64] = self._num_tokens / num_characters
        total_tokens = int(self._num_tokens.sum())
        self._block = max(1, round(page_size * int(num_characters.sum()) / max(1, total_tokens)))
        self._hasher = PrefixHasher()
        self._texts = texts
        self._keys = [self._keys_of(text, seed) for text, seed in zip(texts, self._seeds, strict=True)]
        self._usable = self._count(self._keys)

    @property
    def num_usable(self) -> npt.NDArray[np.float64]:
        """Tokens of each prompt as it is that an infinite cache would give, `[num_prompts]`."""
        return self._usable

    def num_usable_with(self, prompts: Sequence[Sections]) -> npt.NDArray[np.float64]:
        """The same for changed prompts. At most all tokens but the last of the prompt as it was."""
        keys: list[Keys] = []
        for index, prompt in enumerate(prompts):
            if prompt is self.prompts[index]:
                keys.append(self._keys[index])
                continue
            text = _text(prompt)
            same = text == self._texts[index]
            keys.append(self._keys[index] if same else self._keys_of(text, self._seeds[index]))
        return self._count(keys)

    def _keys_of(self, text: str, seed: int) -> Keys:
        characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        return self._hasher.keys(characters, self._block, seed=seed)

    def _count(self, keys: Sequence[Keys]) -> npt.NDArray[np.float64]:
        known = num_known_blocks(keys) * self._block * self.tokens_per_character
        return np.minimum(known, np.maximum(self._num_tokens - 1, 0))


def mended(prompts: Sequence[Sections], mends: Sequence[Mend]) -> list[Sections]:
    """All `mends` in order, on all `prompts`."""
    changed = list(prompts)
    for mend in mends:
        changed = [mend(prompt) for prompt in changed]
    return changed


def _text(prompt: Sections) -> str:
    return "".join(f"{_SEPARATOR}{section.role or ''}\n{section.content}" for section in prompt)
