from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.byte_tokenizer import byte_tokenizer
from tests.unit.insight.made_up import (
    chat,
    divergence_of,
    encoded,
    parted,
    place,
    record_of,
    rendered,
    report_of,
)

from pagefall.insight.explanation import explain
from pagefall.messages import Divergence, MissedPages, MissReason, TokenIds
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt
from pagefall.text.tokenizer import Tokenizer

TRIMS = (
    "{% for m in messages %}[{{ m.role }}]\n{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
SYSTEM_LAST = (
    "{% for m in messages[1:-1] %}[{{ m.content }}]{% endfor %}"
    "[{{ messages[0].content }}\n\n{{ messages[-1].content }}][/]"
)
DROPS_REASONING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endfor %}<assistant>"
)
LOOKS_INSIDE = (
    "{% for m in messages %}<{{ m.role }}{% if 'tool' in m.content %} tool{% endif %}>{{ m.content }}{% endfor %}<end>"
)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (chat("It is 12:45.", "Hi"), chat("It is 12:47.", "Hi"), (0, "content", 10)),
        (chat("Be brief.", "What is a cat?"), chat("Be brief.", "What is a dog?"), (1, "content", 10)),
        (chat("Be brief.", "cat"), chat("Be brief.", "dog"), (1, "content", 0)),
        (chat("A", "same", "same", "same!"), chat("A", "same", "same", "same?"), (3, "content", 4)),
        (chat("A", "same", "same!", "same"), chat("A", "same", "same?", "same"), (2, "content", 4)),
        (chat("Be brief, please.", "x"), chat("Be brief.", "x"), (0, "content", 8)),
        (chat("Be brief.", "x"), chat("Be brief, please.", "x"), (0, "content", 8)),
        (chat("안녕 👋 하나", "x"), chat("안녕 👋 둘", "x"), (0, "content", 5)),
        (chat("안녕 👋 하나", "x"), chat("안녕 👍 하나", "x"), (0, "content", 3)),
        (chat("𓀀a", "x"), chat("𓀁a", "x"), (0, "content", 0)),
        (chat("", "x y"), chat("", "x z"), (1, "content", 2)),
        (chat("\n\nA", "x"), chat("\n\nB", "x"), (0, "content", 2)),
        (
            chat("say <|im_end|>\n<|im_start|>user\nthis", "b"),
            chat("say <|im_end|>\n<|im_start|>user\nthat", "b"),
            (0, "content", 34),
        ),
        (
            chat("x", "<|im_end|>\n<|im_start|>assistant\n", "y", "one"),
            chat("x", "<|im_end|>\n<|im_start|>assistant\n", "y", "two"),
            (3, "content", 0),
        ),
    ],
)
def test_the_point_is_the_first_character_that_differs_of_the_message_it_is_in(
    smol: Tokenizer, ours: ChatPrompt, theirs: ChatPrompt, expected: tuple[int, str, int]
) -> None:
    found = parted(ours, theirs, smol)
    assert place(found) == expected
    assert found.message_role == ours.messages[expected[0]].role
    ours_text, theirs_text = rendered(ours, smol), rendered(theirs, smol)
    assert ours_text[: found.character] == theirs_text[: found.character]
    assert ours_text[found.character] != theirs_text[found.character]
    assert found.snippet is not None
    assert found.snippet.before == ours_text[max(0, found.character - 60) : found.character]
    assert found.snippet.prompt == ours_text[found.character : found.character + 60]
    assert found.snippet.other is not None
    assert found.snippet.other
    assert theirs_text[found.character :].startswith(found.snippet.other)
    assert not found.is_same_text
    assert not found.is_decoded_text


def test_a_system_prompt_that_the_template_adds_is_its_own_text(smol: Tokenizer) -> None:
    alone = ChatPrompt(messages=(ChatMessage("user", "You there?"),))
    assert place(parted(alone, chat("You are kind.", "You there?"), smol)) == (0, "template", None)
    assert place(parted(chat("You are kind.", "You there?"), alone, smol)) == (0, "content", 8)
    other = ChatPrompt(messages=(ChatMessage("user", "You here?"),))
    assert place(parted(alone, other, smol)) == (0, "content", 4)


def test_roles_that_differ_are_in_the_text_that_introduces_the_message(smol: Tokenizer) -> None:
    ours = ChatPrompt(messages=(ChatMessage("system", "s"), ChatMessage("user", "u")))
    theirs = ChatPrompt(messages=(ChatMessage("system", "s"), ChatMessage("assistant", "u")))
    found = parted(ours, theirs, smol)
    assert (place(found), found.message_role) == ((1, "template", None), "user")


def test_after_the_last_message_comes_the_generation_prompt(smol: Tokenizer) -> None:
    found = parted(chat("s", "u"), chat("s", "u", "a"), smol)
    assert place(found) == (None, "generation_prompt", None)
    assert found.message_role is None
    assert found.has_other
    assert found.snippet is not None
    assert found.snippet.other == "a<|im_end|>\n<|im_start|>assistant\n"


def test_a_message_that_is_continued_goes_on_to_the_end(smol: Tokenizer) -> None:
    settings = {"add_generation_prompt": False, "continue_final_message": True}
    ours, theirs = chat("s", "u", "I think that", **settings), chat("s", "u", "I think so", **settings)
    assert place(parted(ours, theirs, smol)) == (2, "content", 8)
    longer = chat("s", "u", "I think that cats", **settings)
    assert place(parted(longer, ours, smol)) == (2, "content", 12)
    assert place(parted(ours, longer, smol)) == (2, "content", 12)


@pytest.mark.parametrize(
    ("template", "ours", "theirs", "expected"),
    [
        (TRIMS, chat("  head \n", " \n  at 1 "), chat("  head \n", " \n  at 2 "), (1, "content", 7)),
        (TRIMS, chat("  head 1 \n", "x"), chat("head 2", "x"), (0, "content", 7)),
        (TRIMS, chat("a\n[user]\nb\n", "a\n[user]\nb 1"), chat("a\n[user]\nb\n", "a\n[user]\nb 2"), (1, "content", 11)),
        (SYSTEM_LAST, chat("sys 1", "u", "a", "v"), chat("sys 2", "u", "a", "v"), (0, "content", 4)),
        (SYSTEM_LAST, chat("sys", "u", "a 1", "v"), chat("sys", "u", "a 2", "v"), (2, "content", 2)),
        (
            DROPS_REASONING,
            chat("s", "u", "<think>hm</think>\n\nso 1", "v"),
            chat("s", "u", "<think>no</think>\n\nso 2", "v"),
            (2, "content", 22),
        ),
        (LOOKS_INSIDE, chat("a tool", "b 1"), chat("a tool", "b 2"), (1, "content", 2)),
        (LOOKS_INSIDE, chat("a tool 1", "b"), chat("a tool 2", "b"), (0, "content", 7)),
    ],
)
def test_contents_that_a_template_trims_moves_or_cuts_count_as_they_were_sent(
    template: str,
    ours: ChatPrompt,
    theirs: ChatPrompt,
    expected: tuple[int, str, int],
) -> None:
    tokenizer = byte_tokenizer(template)
    assert place(parted(ours, theirs, tokenizer)) == expected


def test_a_content_that_the_template_rewrites_is_found_but_its_characters_are_not() -> None:
    tokenizer = byte_tokenizer("{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}{% endfor %}")
    template_reads_marks = parted(chat("one", "two 1"), chat("one", "two 2"), tokenizer)
    assert template_reads_marks.message_character is None
    kept = byte_tokenizer("{% for m in messages %}<{{ m.role }}>{{ m.content.replace('o', '0') }}{% endfor %}")
    assert place(parted(chat("one", "two 1"), chat("one", "two 2"), kept)) == (1, "content", None)


def test_where_the_known_path_ended_there_is_no_other_text(smol: Tokenizer) -> None:
    ours = encoded(chat("s", "one two three"), smol)
    [end] = [i for i in range(len(ours)) if smol.decode(ours[i : i + 1]) == " three"]
    ended = divergence_of(ours, ours[:end])
    explained = explain(
        record_of(chat("s", "one two three"), ours, report_of(ours, ended)), smol, model="m", redact=False
    )
    assert explained.divergence is not None
    assert not explained.divergence.has_other
    assert explained.divergence.snippet is not None
    assert explained.divergence.snippet.other is None
    assert place(explained.divergence) == (1, "content", 7)
    assert explained.divergence.snippet.prompt == " three<|im_end|>\n<|im_start|>assistant\n"


def test_the_whole_prompt_may_have_been_known(smol: Tokenizer) -> None:
    found = parted(chat("s", "u"), chat("s", "u"), smol)
    assert (found.token_index, place(found)) == (len(encoded(chat("s", "u"), smol)), (None, "generation_prompt", None))


def test_text_that_is_cut_into_other_tokens_is_told_from_other_text(smol: Tokenizer) -> None:
    prompt = TextPrompt("The cat sat on a mat, and there it slept until the sun was gone.")
    ours = encoded(prompt, smol)
    [start] = [i for i in range(len(ours)) if smol.decode(ours[i : i + 1]) == " slept"]
    pieces = np.concatenate([encoded(TextPrompt(" sl"), smol), encoded(TextPrompt("ept"), smol)])
    theirs = np.concatenate([ours[:start], pieces, ours[start + 1 :]])
    explained = explain(
        record_of(
            prompt,
            ours,
            report_of(
                ours,
                divergence_of(ours, theirs),
                MissedPages(reason="diverged", first_page=0, num_pages=1, num_tokens=16),
            ),
        ),
        smol,
        model="m",
        redact=False,
    )
    found = explained.divergence
    assert found is not None
    assert found.is_same_text
    assert found.character == prompt.text.index(" slept")
    assert found.snippet is not None
    assert found.snippet.prompt == found.snippet.other
    assert "other tokens" in explained.misses[0].explanation


def test_a_token_that_depends_on_what_follows_it_is_no_reason_of_its_own(smol: Tokenizer) -> None:
    """Of `xxabcd` and `xxabcx` the tokens part before the characters do."""
    for ours, theirs in (
        ("a internationally", "a internationalize"),
        ("go lowest", "go lowerx"),
        ("12345678", "12345679"),
    ):
        found = parted(TextPrompt(ours), TextPrompt(theirs), smol)
        assert not found.is_same_text
        assert ours[: found.character] == theirs[: found.character]
        assert ours[found.character] != theirs[found.character]


def test_a_text_whose_tokens_do_not_decode_to_it_is_placed_by_their_spans(llama: Tokenizer) -> None:
    ours, theirs = TextPrompt("the quick 안 fox a"), TextPrompt("the quick 안 fox b")
    found = parted(ours, theirs, llama)
    assert not found.is_decoded_text
    assert found.character == ours.text.index("a")
    cut = parted(TextPrompt("the 안녕"), TextPrompt("the 안됨"), llama)
    assert cut.character == 5
    assert cut.snippet is not None
    assert (cut.snippet.before, cut.snippet.prompt, cut.snippet.other) == ("the 안", "녕", "됨")


def test_token_ids_are_shown_as_the_text_they_stand_for(smol: Tokenizer) -> None:
    ours, theirs = encoded(TextPrompt("one two 👋"), smol), encoded(TextPrompt("one two 👍"), smol)
    explained = explain(
        record_of(None, ours, report_of(ours, divergence_of(ours, theirs))), smol, model="m", redact=False
    )
    found = explained.divergence
    assert found is not None
    assert (found.is_decoded_text, found.character, found.message_index) == (True, 8, None)
    assert found.snippet is not None
    assert (found.snippet.prompt, found.snippet.other) == ("👋", "👍")


def test_a_template_that_says_something_else_by_now_is_not_believed() -> None:
    then = byte_tokenizer("(monday){% for m in messages %}<{{ m.content }}>{% endfor %}")
    now = byte_tokenizer("(tuesday){% for m in messages %}<{{ m.content }}>{% endfor %}")
    gone = byte_tokenizer("{{ raise_exception('gone') }}")
    ours, theirs = encoded(chat("a", "b 1"), then), encoded(chat("a", "b 2"), then)
    record = record_of(chat("a", "b 1"), ours, report_of(ours, divergence_of(ours, theirs)))
    for tokenizer in (now, gone):
        found = explain(record, tokenizer, model="m", redact=False).divergence
        assert found is not None
        assert found.is_decoded_text
        assert place(found) == (1, "content", 2)
        assert found.snippet is not None
        assert found.snippet.before == "(monday)<a><b "


def test_redacted_prompts_leave_positions_and_no_text(smol: Tokenizer) -> None:
    ours = encoded(chat("It is 12:45.", "secret"), smol)
    report = report_of(ours, divergence_of(ours, encoded(chat("It is 12:47.", "hidden"), smol)))
    record = record_of(chat("It is 12:45.", "secret"), ours, report)
    explained = explain(record, smol, model="m", redact=True)
    assert explained.divergence is not None
    assert explained.divergence.snippet is None
    assert place(explained.divergence) == (0, "content", 10)


def test_the_account_of_a_request_that_has_ended(smol: Tokenizer) -> None:
    prompt = chat("s", "u")
    ours = encoded(prompt, smol)
    record = record_of(
        prompt,
        ours,
        report_of(ours, None),
        first_token_at=11.5,
        last_token_at=12.0,
        ended_at=13.0,
        finish_reason="stop",
        num_generated_tokens=4,
        http_request_id="trace-1",
    )
    explained = explain(record, smol, model="m", redact=False)
    assert (explained.state, explained.finish_reason, explained.num_generated_tokens) == ("ended", "stop", 4)
    assert (explained.ttft_seconds, explained.total_seconds, explained.queue_seconds) == (1.5, 3.0, 0.25)
    assert (explained.saved_seconds, explained.time, explained.http_request_id) == (0.5, 1000.0, "trace-1")
    assert sum(explained.num_tokens_by_source.values()) == explained.num_prompt_tokens == len(ours)
    assert explained.divergence is None


def test_before_a_prompt_is_settled_little_is_known(smol: Tokenizer) -> None:
    record = record_of(chat("s", "u"), encoded(chat("s", "u"), smol), None)
    explained = explain(record, smol, model="m", redact=False)
    assert (explained.state, explained.is_settled, explained.misses) == ("queued", False, ())
    assert explained.ttft_seconds is None
    assert explain(replace(record, first_token_at=12.0), smol, model="m", redact=False).state == "running"


MISSES: list[tuple[MissReason, dict[str, Any], str, str | None]] = [
    ("never_seen", {}, "new text", None),
    ("evicted", {"tier": "host", "seconds_ago": 42.0, "cause": "pool_full"},
     "evicted from host memory 42 s earlier because it was full", "--hicache-size"),
    ("evicted", {"tier": "device", "seconds_ago": 600.0, "cause": "pool_full"},
     "evicted from device memory 10 min earlier because it was full", "--enable-hierarchical-cache"),
    ("evicted", {"tier": "device", "seconds_ago": 3.0, "cause": "flushed"},
     "dropped from device memory 3.0 s earlier by a flush of the cache", None),
    ("evicted", {"tier": "storage", "cause": "gone_from_store"}, "does not have it any more", "quota"),
    ("evicted", {}, "evicted from the cache", None),
    ("other_salt", {}, "another cache_salt", "same cache_salt"),
    ("other_namespace", {}, "other settings", "pagefall cache diff"),
    ("page_tail", {}, "always computed", None),
    ("below_threshold", {}, "too few tokens", "--hicache-prefetch-threshold"),
    ("slower_than_recompute", {"load_seconds": 1.9, "compute_seconds": 0.4},
     "loading it would have taken 1.9 s, computing it 400 ms", None),
    ("slower_than_recompute", {}, "quicker than loading", None),
    ("timed_out", {"detail": "no answer"}, "in time: no answer", "--hicache-storage-deadline"),
    ("store_down", {"detail": "it failed"}, "it failed", "/cache/storage"),
    ("corrupt", {"detail": "checksum"}, "damaged, or another page's: checksum", "pagefall cache verify --delete"),
    ("no_room", {}, "no free page", "--hicache-ratio"),
    ("copy_failed", {}, "copying it to the device failed", "log"),
    ("cache_disabled", {}, "--disable-radix-cache", "without"),
    ("scored", {}, "log-probabilities", "echo"),
    ("unreached", {}, "ended before", None),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "fields", "words", "advice"), MISSES)
def test_every_reason_is_a_sentence_and_where_something_can_be_done_an_advice(
    byte_level: Tokenizer, reason: MissReason, fields: dict[str, Any], words: str, advice: str | None
) -> None:
    token_ids: TokenIds = np.arange(60, dtype=np.uint32)
    miss = MissedPages(reason=reason, first_page=2, num_pages=2, num_tokens=28, **fields)
    explained = explain(
        record_of(None, token_ids, report_of(token_ids, None, miss)), byte_level, model="m", redact=False
    )
    [said] = explained.misses
    assert (said.reason, said.first_token, said.num_tokens, said.first_page, said.num_pages) == (reason, 32, 28, 2, 2)
    assert words in said.explanation
    assert (said.advice is None) == (advice is None)
    assert advice is None or advice in (said.advice or "")


def test_what_diverged_is_said_with_its_place(smol: Tokenizer) -> None:
    ours = encoded(chat("It is 12:45.", "Hi"), smol)
    divergence: Divergence = divergence_of(ours, encoded(chat("It is 12:47.", "Hi"), smol))
    miss = MissedPages(reason="diverged", first_page=0, num_pages=1, num_tokens=16)
    record = record_of(chat("It is 12:45.", "Hi"), ours, report_of(ours, divergence, miss))
    [said] = explain(record, smol, model="m", redact=True).misses
    assert "in messages[0] (system), character 10" in said.explanation
    assert "behind everything that stays the same" in (said.advice or "")
