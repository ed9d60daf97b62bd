from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.router.approximate import BLOCK_TOKENS, ApproximateTree, blocks_of, num_prompt_tokens
from pagefall.router.routing import RouteRequest, WorkerId

A, B = WorkerId("http://a"), WorkerId("http://b")


def prompt(*parts: int, salt: str = "") -> RouteRequest:
    """Each part is a block of tokens, and one more token is behind them."""
    token_ids = np.repeat(np.array(parts, dtype=np.uint32), BLOCK_TOKENS)
    return RouteRequest(token_ids=np.append(token_ids, np.uint32(0)), text="", cache_salt=salt)


def text(content: str, salt: str = "") -> RouteRequest:
    return RouteRequest(token_ids=None, text=content, cache_salt=salt)


def known(tree: ApproximateTree, request: RouteRequest) -> tuple[int, int]:
    found = tree.match(blocks_of(request), [A, B])
    return found[A] // BLOCK_TOKENS, found[B] // BLOCK_TOKENS


def test_a_worker_is_taken_to_have_the_prefix_of_what_it_was_sent() -> None:
    tree = ApproximateTree()
    tree.sent(blocks_of(prompt(1, 2, 3)), A)
    tree.sent(blocks_of(prompt(1, 9)), B)
    assert known(tree, prompt(1, 2, 3, 4)) == (3, 1)
    assert known(tree, prompt(1, 2)) == (2, 1)
    assert known(tree, prompt(2, 3)) == (0, 0)


def test_equal_blocks_behind_different_heads_are_different() -> None:
    tree = ApproximateTree()
    tree.sent(blocks_of(prompt(1, 2, 2, 2)), A)
    assert known(tree, prompt(2, 2, 2)) == (0, 0)
    assert known(tree, prompt(1, 2, 2, 3)) == (3, 0)


def test_tenants_share_nothing() -> None:
    tree = ApproximateTree()
    tree.sent(blocks_of(prompt(1, 2, salt="x")), A)
    tree.sent(blocks_of(text("word " * 100, salt="x")), A)
    assert known(tree, prompt(1, 2)) == (0, 0)
    assert known(tree, text("word " * 100)) == (0, 0)
    assert known(tree, prompt(1, 2, salt="x")) == (2, 0)


def test_text_is_matched_where_there_are_no_tokens() -> None:
    tree = ApproximateTree()
    head = "".join(random.Random(1).choices("abcdefgh ", k=640))
    tree.sent(blocks_of(text(head + "one question")), A)
    assert known(tree, text(head + "another one")) == (10, 0)
    assert known(tree, text("x" + head)) == (0, 0)


def test_the_last_token_is_never_a_part_of_what_is_cached() -> None:
    whole = RouteRequest(token_ids=np.zeros(BLOCK_TOKENS, dtype=np.uint32), text="")
    assert list(blocks_of(whole)) == []


def test_prompts_without_anything_have_no_blocks() -> None:
    assert list(blocks_of(text(""))) == []
    assert list(blocks_of(RouteRequest(token_ids=np.zeros(0, dtype=np.uint32), text=""))) == []


def test_a_text_that_is_no_unicode_is_a_text() -> None:
    assert len(blocks_of(text("\ud800" * 100))) > 0


def test_what_was_used_longest_ago_is_given_up_first_and_from_its_end() -> None:
    tree = ApproximateTree(max_tokens_per_worker=4 * BLOCK_TOKENS)
    tree.sent(blocks_of(prompt(1, 2, 3)), A)
    tree.sent(blocks_of(prompt(7, 8)), A)
    assert known(tree, prompt(1, 2, 3))[0] == 2
    tree.sent(blocks_of(prompt(1)), A)
    tree.sent(blocks_of(prompt(5)), A)
    assert known(tree, prompt(1, 2))[0] == 1
    assert known(tree, prompt(7, 8))[0] == 2


def test_distinct_prompts_without_end_do_not_exceed_the_bound() -> None:
    tree = ApproximateTree(max_tokens_per_worker=100 * BLOCK_TOKENS)
    for number in range(500):
        tree.sent(blocks_of(prompt(number, number, number)), A)
    assert tree.num_tokens(A) == 100 * BLOCK_TOKENS


def test_a_worker_that_was_restarted_has_nothing() -> None:
    tree = ApproximateTree()
    tree.sent(blocks_of(prompt(1)), A)
    tree.sent(blocks_of(prompt(1)), B)
    tree.drop(A)
    assert known(tree, prompt(1)) == (0, 1)


def test_the_length_of_a_text_is_an_estimate() -> None:
    assert num_prompt_tokens(text("x" * 10)) == 3
    assert num_prompt_tokens(prompt(1)) == BLOCK_TOKENS + 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=30),
    st.lists(st.integers(0, 2), max_size=6),
    st.integers(1, 20),
)
def test_halving_finds_the_same_end_as_walking(sent: list[list[int]], asked: list[int], num_blocks: int) -> None:
    tree = ApproximateTree(max_tokens_per_worker=num_blocks * BLOCK_TOKENS)
    for parts in sent:
        tree.sent(blocks_of(prompt(*parts)), A)
    blocks = blocks_of(prompt(*asked))
    walked = 0
    while walked < len(blocks) and blocks[walked] in tree._blocks[A]:
        walked += 1
    assert not any(block in tree._blocks[A] for block in blocks[walked:])
    assert tree.match(blocks, [A])[A] == walked * BLOCK_TOKENS
