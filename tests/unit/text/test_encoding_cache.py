from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.messages import TokenIds
from pagefall.text.encoding_cache import EncodingCache
from pagefall.text.requests import ChatMessage
from pagefall.text.tokenizer import Tokenizer

LONG = "it's done by the lazy dog. " * 12
SPECIALS = ["<turn>", "<end>", "<|a|>", "<x", "x<turn>y", "<sp> ", "é<e>", "EOT", "foo"]
PIECES = [*SPECIALS, "</s>", "<s>", "<", "turn>", "<turn", "x", "y", " ", "\n", "e\N{COMBINING ACUTE ACCENT}", "<sp>"]


class Counting:
    """Stands before a tokenizer and counts the characters it is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_characters = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        self.num_characters += len(text)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(map(int, tokenizer.encode(text, add_special_tokens=False)))


def test_a_text_has_the_tokens_that_the_tokenizer_makes_of_it(tokenizer: Tokenizer) -> None:
    cache = EncodingCache(tokenizer)
    turns = [LONG, "short", LONG + "안녕 👋", LONG]
    text = "".join(f"<s>{turn}</s>\n" for turn in turns) + tokenizer.apply_chat_template([ChatMessage("user", LONG)])
    for _ in range(2):
        assert cache.encode(text).tolist() == plain(tokenizer, text)


@given(
    pieces=st.lists(
        st.one_of(st.sampled_from(PIECES), st.text(max_size=5), st.sampled_from([LONG, LONG + "<", "y" + LONG])),
        min_size=4,
        max_size=40,
    )
)
@settings(deadline=None, max_examples=150)
def test_whatever_stands_beside_a_special_token_has_the_same_tokens(awkward: Tokenizer, pieces: list[str]) -> None:
    cache = EncodingCache(awkward)
    for text in ("".join(pieces), LONG.join(pieces)):
        expected = plain(awkward, text)
        assert cache.encode(text).tolist() == expected
        assert cache.encode(text).tolist() == expected


def test_a_part_that_is_known_is_not_encoded_again(embedded: Tokenizer) -> None:
    counting = Counting(embedded)
    cache = EncodingCache(counting)  # type: ignore[arg-type]
    turns = [ChatMessage("system", LONG), ChatMessage("user", LONG * 2), ChatMessage("assistant", LONG * 3)]
    cache.encode(embedded.apply_chat_template(turns))
    counting.num_characters = 0
    text = embedded.apply_chat_template([*turns, ChatMessage("user", "And then?")])
    assert cache.encode(text).tolist() == plain(embedded, text)
    assert counting.num_characters < 150


def test_what_one_tenant_has_sent_is_encoded_for_another_as_if_it_were_new(embedded: Tokenizer) -> None:
    counting = Counting(embedded)
    cache = EncodingCache(counting)  # type: ignore[arg-type]
    text = embedded.apply_chat_template([ChatMessage("user", LONG)])
    taken = []
    for salt in ("", "a", "b", "a"):
        counting.num_characters = 0
        cache.encode(text, salt)
        taken.append(counting.num_characters > len(LONG))
    assert taken == [True, True, True, False]


def test_after_clear_nothing_is_known(embedded: Tokenizer) -> None:
    counting = Counting(embedded)
    cache = EncodingCache(counting)  # type: ignore[arg-type]
    text = embedded.apply_chat_template([ChatMessage("user", LONG)])
    for _ in range(2):
        cache.encode(text)
        cache.clear()
    assert counting.num_characters >= 2 * len(LONG)


def test_parts_that_nobody_asked_for_longest_make_room(embedded: Tokenizer) -> None:
    counting = Counting(embedded)
    size = len(plain(embedded, LONG + "0")) + 70
    cache = EncodingCache(counting, max_tokens=8 * size)  # type: ignore[arg-type]

    def is_known(index: int) -> bool:
        counting.num_characters = 0
        cache.encode(f"<|im_start|>{LONG}{index}<|im_end|>")
        return counting.num_characters < len(LONG)

    assert [is_known(index) for index in range(8)] == [False] * 8
    assert is_known(0)
    assert not is_known(8)
    assert [is_known(index) for index in (0, *range(2, 9))] == [True] * 8
    assert not is_known(1)


def test_a_part_that_is_too_large_takes_no_others_place(embedded: Tokenizer) -> None:
    counting = Counting(embedded)
    size = len(plain(embedded, LONG)) + 70
    cache = EncodingCache(counting, max_tokens=8 * size)  # type: ignore[arg-type]
    for text in (LONG, LONG * 2, LONG * 9):
        cache.encode(text)
    counting.num_characters = 0
    cache.encode(LONG)
    assert counting.num_characters == 0
    cache.encode(LONG * 2)
    assert counting.num_characters == len(LONG) * 2


def test_where_special_tokens_are_text_nothing_is_cut_at_them(splitting: Tokenizer) -> None:
    text = f"a</s>{LONG}</s>b"
    assert splitting.special_token_id("</s>") not in plain(splitting, text)
    assert EncodingCache(splitting).encode(text).tolist() == plain(splitting, text)


def test_nobody_can_change_what_is_kept(embedded: Tokenizer) -> None:
    cache = EncodingCache(embedded)
    for text in (LONG, f"<|im_start|>{LONG}", "<|im_start|>", ""):
        for _ in range(2):
            encoded = cache.encode(text)
            assert encoded.tolist() == plain(embedded, text)
            encoded[:] = 0
