from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from pagefall.actors.compiling import ConstraintCompiler
from pagefall.errors import RequestError
from pagefall.messages import SamplingParams
from pagefall.text.constraints import AnyJson, Regex
from pagefall.text.grammar import grammar_text, unusable

pytestmark = pytest.mark.anyio

SAMPLING = SamplingParams(temperature=0.5)


class FakeGrammars:
    """Remembers what it compiled; a closed gate holds it up."""

    def __init__(self) -> None:
        self.compiled: set[str] = set()
        self.held = Counter[str]()
        self.threads: list[threading.Thread] = []
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()

    def is_compiled(self, grammar: str) -> bool:
        return grammar in self.compiled

    def hold(self, grammar: str) -> None:
        self.held[grammar] += 1

    def release(self, grammar: str) -> None:
        self.held[grammar] -= 1

    def compile(self, grammar: str, *, param: str) -> None:
        self.threads.append(threading.current_thread())
        self.gate.wait(timeout=10)
        if "bad" in grammar:
            raise unusable(param, "it is bad")
        if "busy" in grammar:
            raise TimeoutError
        self.compiled.add(grammar)

    def close(self) -> None:
        self.closed = True


async def test_sampling_gets_the_grammar_of_the_constraint() -> None:
    with ConstraintCompiler(FakeGrammars(), max_waiting=1) as compiler:
        assert await compiler.constrain(SAMPLING, None) is SAMPLING
        constrained = await compiler.constrain(SAMPLING, Regex(pattern="a+"))
        assert constrained.grammar == grammar_text(Regex(pattern="a+"))
        assert constrained.temperature == 0.5


async def test_a_grammar_is_compiled_off_the_loops_thread_and_a_compiled_one_never_waits() -> None:
    grammars = FakeGrammars()
    with ConstraintCompiler(grammars, max_waiting=1) as compiler:
        await compiler.constrain(SAMPLING, AnyJson())
        assert grammars.threads[0] is not threading.current_thread()
        grammars.gate.clear()
        waiting = asyncio.create_task(compiler.constrain(SAMPLING, Regex(pattern="b")))
        await asyncio.sleep(0)
        assert (await compiler.constrain(SAMPLING, AnyJson())).grammar is not None
        with pytest.raises(RequestError) as refused:
            await compiler.constrain(SAMPLING, Regex(pattern="c"))
        assert refused.value.status == 503
        grammars.gate.set()
        await waiting
        await compiler.constrain(SAMPLING, Regex(pattern="c"))
    assert grammars.closed


async def test_what_does_not_compile_is_the_requests_fault() -> None:
    with ConstraintCompiler(FakeGrammars(), max_waiting=1) as compiler:
        for _ in range(2):
            with pytest.raises(RequestError, match="it is bad") as refused:
                await compiler.constrain(SAMPLING, Regex(pattern="bad", param="guided_regex"))
            assert (refused.value.status, refused.value.param) == (400, "guided_regex")


async def test_without_grammars_every_constraint_is_refused_by_name() -> None:
    with ConstraintCompiler(None, max_waiting=1) as compiler:
        assert await compiler.constrain(SAMPLING, None) is SAMPLING
        with pytest.raises(RequestError, match="'response_format' is not supported") as refused:
            await compiler.constrain(SAMPLING, AnyJson())
        assert refused.value.status == 400


async def test_many_who_want_one_new_grammar_wait_for_it_together() -> None:
    grammars = FakeGrammars()
    grammars.gate.clear()
    with ConstraintCompiler(grammars, max_waiting=1) as compiler:
        waiting = [asyncio.create_task(compiler.constrain(SAMPLING, Regex(pattern="b"))) for _ in range(20)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        grammars.gate.set()
        assert {(await each).grammar for each in waiting[1:]} == {grammar_text(Regex(pattern="b"))}
        assert len(grammars.threads) == 1
        await compiler.constrain(SAMPLING, Regex(pattern="c"))


async def test_without_another_limit_few_new_grammars_may_be_in_line() -> None:
    grammars = FakeGrammars()
    grammars.gate.clear()
    with ConstraintCompiler(grammars) as compiler:
        waiting = [asyncio.create_task(compiler.constrain(SAMPLING, Regex(pattern="b" * n))) for n in range(1, 9)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as refused:
            await compiler.constrain(SAMPLING, Regex(pattern="c"))
        assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1)
        for each in waiting[1:]:
            each.cancel()
        await asyncio.gather(*waiting[1:], return_exceptions=True)
        grammars.gate.set()
        await waiting[0]
        await compiler.constrain(SAMPLING, Regex(pattern="c"))  # nobody compiles for those who left
        assert len(grammars.threads) == 2


async def test_a_machine_too_busy_to_tell_is_not_the_requests_fault() -> None:
    with ConstraintCompiler(FakeGrammars()) as compiler:
        with pytest.raises(RequestError, match="too busy") as refused:
            await compiler.constrain(SAMPLING, Regex(pattern="busy"))
        assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1)


async def test_a_grammar_is_held_from_before_it_is_compiled_until_it_is_released() -> None:
    grammars = FakeGrammars()
    good, bad = Regex(pattern="a"), Regex(pattern="bad")
    with ConstraintCompiler(grammars) as compiler:
        constrained = [await compiler.constrain(SAMPLING, good) for _ in range(2)]
        with pytest.raises(RequestError):
            await compiler.constrain(SAMPLING, bad)
        assert grammars.held == {grammar_text(good): 2, grammar_text(bad): 0}
        compiler.release(constrained[0])
        compiler.release(SAMPLING)
        assert grammars.held == {grammar_text(good): 1, grammar_text(bad): 0}
