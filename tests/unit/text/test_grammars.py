"""Grammars are tried out in a process of their own, compiled once, and none that is hostile harms anybody."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.byte_tokenizer import EOS, byte_tokenizer

from pagefall.errors import RequestError
from pagefall.text.constraints import Constraint, JsonSchema, Lark, Regex
from pagefall.text.grammar import grammar_text
from pagefall.text.grammars import MAX_REFUSED, Grammars
from pagefall.text.matchers import UnusableGrammarError, VocabularyFacts
from pagefall.text.probe_process import GrammarProbe

FACTS = VocabularyFacts(tokenizer_json=byte_tokenizer().to_json(), vocab_size=300, eos_token_ids=(EOS,))
SIMPLE = grammar_text(Regex(pattern="[ab]+"))


class FakeProbe:
    """Refuses what has "bad" in it. Has no time where `is_busy`."""

    def __init__(self, facts: VocabularyFacts) -> None:
        self.checked: list[str] = []
        self.is_busy = False
        self.closed = False

    def check(self, grammar: str) -> str | None:
        self.checked.append(grammar)
        if self.is_busy:
            raise TimeoutError
        return "it is bad" if "bad" in grammar else None

    def close(self) -> None:
        self.closed = True


def grammars_with_fake(**options: int) -> tuple[Grammars, FakeProbe]:
    probe = FakeProbe(FACTS)
    return Grammars(FACTS, probe=lambda _: probe, **options), probe


@pytest.fixture(scope="module")
def real_probe() -> Iterator[GrammarProbe]:
    # What follows takes minutes of CPU time, or the stack.
    probe = GrammarProbe(FACTS, cpu_seconds=0.3, deadline_seconds=60)
    yield probe
    probe.close()


def chain(length: int) -> dict[str, object]:
    steps: dict[str, object] = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}]} for i in range(length)}
    return {"$defs": {**steps, f"a{length}": {"type": "string"}}, "$ref": "#/$defs/a0"}


HOSTILE: dict[str, Constraint] = {
    "a chain of references that takes the whole stack": JsonSchema(schema=chain(4000)),
    "rules that take the whole stack": Lark(
        grammar="start: T0\n" + "".join(f'T{i}: "a" T{i + 1}\n' for i in range(15_000)) + 'T15000: "b"'
    ),
    "a number that unrolls": JsonSchema(schema={"type": "integer", "multipleOf": 999_999_937}),
    "a product of choices": JsonSchema(
        schema={
            "allOf": [
                {"anyOf": [{"type": "object", "properties": {f"k{i}{j}": {"type": "string"}}} for j in range(6)]}
                for i in range(12)
            ]
        }
    ),
    "twenty thousand optional letters": Regex(pattern="a?" * 20_000),
    "ambiguity": Lark(grammar="start: " + " | ".join(["start start"] * 300) + ' | "a"'),
    "thousands of optional properties": JsonSchema(
        schema={"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(6000)}}
    ),
    "brackets": Lark(grammar="start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
    "groups": Regex(pattern="(" * 10_000 + "a" + ")" * 10_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_explodes_is_refused(real_probe: GrammarProbe, name: str) -> None:
    assert real_probe.check(grammar_text(HOSTILE[name])) is not None


def test_after_a_hostile_grammar_an_innocent_one_is_found_good(real_probe: GrammarProbe) -> None:
    assert real_probe.check(grammar_text(HOSTILE["a number that unrolls"])) is not None
    assert real_probe.check(SIMPLE) is None


def test_only_the_time_that_a_grammar_takes_itself_counts_against_it(real_probe: GrammarProbe) -> None:
    reason = real_probe.check(grammar_text(HOSTILE["ambiguity"]))
    assert reason == "it is too complex to be compiled within 0.3 s"
    hurried = GrammarProbe(FACTS, deadline_seconds=0.0)
    with pytest.raises(TimeoutError):
        hurried.check(grammar_text(HOSTILE["ambiguity"]))
    hurried._deadline_seconds = 60
    assert hurried.check(SIMPLE) is None
    hurried.close()


@pytest.mark.parametrize(
    "constraint",
    [
        Regex(pattern="(a|b)*a(a|b){20}"),
        Regex(pattern="(x+x+)+y"),
        Regex(pattern="((a{0,100}){0,100}){0,100}"),
        Regex(pattern=r"(.*a){30}"),
        JsonSchema(schema={"type": "array", "items": {"type": "string"}, "maxItems": 10**9}),
        JsonSchema(schema={"type": "array", "items": {"type": "string"}, "minItems": 10**9}),
        JsonSchema(schema={"type": "string", "pattern": "^(a|b)*a(a|b){30}$"}),
        JsonSchema(schema={"enum": [f"value {i}" for i in range(5000)]}),
        JsonSchema(
            schema={
                "$defs": {"a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}},
                "$ref": "#/$defs/a",
            }
        ),
    ],
    ids=lambda constraint: json.dumps(repr(constraint))[:60],
)
def test_what_only_looks_explosive_compiles(constraint: Constraint) -> None:
    grammars, _ = grammars_with_fake()
    grammars.compile(grammar_text(constraint), param="p")
    assert grammars.is_compiled(grammar_text(constraint))


def test_a_tokenizer_that_cannot_be_loaded_refuses_every_grammar() -> None:
    grammars = Grammars(VocabularyFacts(tokenizer_json="{}", vocab_size=300, eos_token_ids=(EOS,)))
    with pytest.raises(RequestError, match="not supported") as refused:
        grammars.compile(SIMPLE, param="regex")
    assert (refused.value.status, refused.value.param) == (400, "regex")
    grammars.close()


def test_a_grammar_is_compiled_once_and_every_matcher_starts_at_its_beginning() -> None:
    grammars, probe = grammars_with_fake()
    assert not grammars.is_compiled(SIMPLE)
    grammars.compile(SIMPLE, param="p")
    grammars.compile(SIMPLE, param="p")
    assert probe.checked == [SIMPLE]
    first, second = grammars.matcher(SIMPLE), grammars.matcher(SIMPLE)
    assert first.consume_token(ord("a"))
    assert (first.is_accepting(), second.is_accepting()) == (True, False)


def test_a_refusal_names_the_field_and_is_remembered() -> None:
    grammars, probe = grammars_with_fake()
    for _ in range(2):
        with pytest.raises(RequestError, match=r"'regex'.*it is bad") as refused:
            grammars.compile("bad", param="regex")
        assert (refused.value.status, refused.value.param) == (400, "regex")
    assert probe.checked == ["bad"]
    for index in range(MAX_REFUSED):
        with pytest.raises(RequestError):
            grammars.compile(f"bad {index}", param="regex")
    with pytest.raises(RequestError):
        grammars.compile("bad", param="regex")
    assert probe.checked.count("bad") == 2


def test_that_the_machine_was_too_busy_for_a_grammar_is_not_remembered() -> None:
    grammars, probe = grammars_with_fake()
    probe.is_busy = True
    with pytest.raises(TimeoutError):
        grammars.compile(SIMPLE, param="p")
    probe.is_busy = False
    grammars.compile(SIMPLE, param="p")
    assert grammars.is_compiled(SIMPLE)


def test_what_is_held_is_kept_beside_the_few_and_is_one_of_them_again_once_it_is_released() -> None:
    grammars, _ = grammars_with_fake(max_compiled=1)
    texts = [grammar_text(Regex(pattern=letter)) for letter in "abcd"]
    for text in texts[:3]:
        grammars.hold(text)
        grammars.compile(text, param="p")
    grammars.compile(texts[3], param="p")
    assert all(grammars.is_compiled(text) for text in texts)
    grammars.hold(texts[0])
    for text in texts[:3]:
        grammars.release(text)
    assert [grammars.is_compiled(text) for text in texts] == [True, False, False, True]
    grammars.release(texts[0])
    assert [grammars.is_compiled(text) for text in texts] == [False, False, False, True]


def test_few_are_kept_and_a_forgotten_one_is_compiled_again_when_it_is_needed() -> None:
    grammars, _ = grammars_with_fake(max_compiled=2)
    texts = [grammar_text(Regex(pattern=letter)) for letter in "abc"]
    for text in texts[:2]:
        grammars.compile(text, param="p")
    grammars.matcher(texts[0])  # the second is now the one that was not used for longest
    grammars.compile(texts[2], param="p")
    assert [grammars.is_compiled(text) for text in texts] == [True, False, True]
    assert grammars.matcher(texts[1]).consume_token(ord("b"))
    assert grammars.is_compiled(texts[1])


def test_a_discarded_grammar_is_compiled_anew() -> None:
    grammars, _ = grammars_with_fake()
    grammars.compile(SIMPLE, param="p")
    grammars.discard(SIMPLE)
    assert not grammars.is_compiled(SIMPLE)
    assert not grammars.matcher(SIMPLE).is_error()
    with pytest.raises(UnusableGrammarError):
        grammars.matcher(grammar_text(Regex(pattern="[")))


def test_closing_ends_the_probe() -> None:
    grammars, probe = grammars_with_fake()
    grammars.close()
    assert probe.closed
