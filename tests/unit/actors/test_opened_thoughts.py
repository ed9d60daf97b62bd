"""The grammar of an answer is that of its prompt's end: behind a thought that the template has opened it is another."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.unit.actors.test_tokenizer import request, running

from pagefall.actors.compiling import ConstraintCompiler
from pagefall.messages import Submit
from pagefall.text.constraints import Lark
from pagefall.text.grammar import grammar_text
from pagefall.text.replies.dialects import ReplyFormat
from pagefall.text.tokenizer import Tokenizer

pytestmark = pytest.mark.anyio


class Compiled:
    """Has every grammar."""

    def is_compiled(self, grammar: str) -> bool:
        return True

    def hold(self, grammar: str) -> None:
        """Nothing can be lost."""

    def release(self, grammar: str) -> None:
        """Nothing was held."""

    def compile(self, grammar: str, *, param: str) -> None:
        raise AssertionError("it is compiled")

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize(
    ("text", "grammar"),
    [("Hi", 'start: "a"'), ("Hi<think>\n\n</think>\n", 'start: "a"'), ("x" * 50 + "<think>\n", 'start: "b"')],
)
async def test_a_prompt_that_ends_within_a_thought_gets_the_grammar_for_it(
    tokenizer: Tokenizer, text: str, grammar: str
) -> None:
    wanted = Lark(grammar='start: "a"', opened='start: "b"')
    async with running(tokenizer) as world:
        world.engine._compiler = ConstraintCompiler(Compiled(), max_waiting=1)
        card = world.engine.model
        world.engine._model = msgspec.structs.replace(card, replies=ReplyFormat(thinking="qwen3"))
        generating = asyncio.create_task(world.engine.generate(request("a", text, constraint=wanted)))
        [submit] = await world.received()
        generating.cancel()
    assert isinstance(submit, Submit)
    assert submit.sampling.grammar == grammar_text(Lark(grammar=grammar))
