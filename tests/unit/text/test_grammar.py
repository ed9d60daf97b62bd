from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer
from tests.byte_tokenizer import EOS, byte_tokenizer

from pagefall.errors import RequestError
from pagefall.text.constraints import AnyJson, Constraint, JsonSchema, Lark, Regex
from pagefall.text.grammar import MAX_GBNF_BYTES, MAX_REGEX_BYTES, choice, grammar_text
from pagefall.text.matchers import UnusableGrammarError, VocabularyFacts, load_vocabulary, make_matcher, rehearse
from pagefall.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return load_vocabulary(
        VocabularyFacts(tokenizer_json=byte_tokenizer().to_json(), vocab_size=300, eos_token_ids=(EOS,))
    )


def accepts(vocabulary: LLTokenizer, constraint: Constraint, text: str) -> bool:
    """Whether `text` is a whole answer."""
    matcher = make_matcher(vocabulary, grammar_text(constraint))
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


def test_any_json_is_an_object(vocabulary: LLTokenizer) -> None:
    assert accepts(vocabulary, AnyJson(), '{"a": [1, "가", null]}')
    assert not accepts(vocabulary, AnyJson(), "[1]")


def test_a_schema_allows_what_validates_and_no_text_around_it(vocabulary: LLTokenizer) -> None:
    constraint = JsonSchema(schema={"type": "array", "items": {"enum": ["é", 1]}, "minItems": 1})
    assert accepts(vocabulary, constraint, '["é", 1]')
    assert accepts(vocabulary, constraint, '["é",\n  1]')
    assert not accepts(vocabulary, constraint, "[]")
    assert not accepts(vocabulary, constraint, "[2]")
    assert not accepts(vocabulary, constraint, ' ["é"]')


def test_true_allows_any_json(vocabulary: LLTokenizer) -> None:
    assert accepts(vocabulary, JsonSchema(schema=True), "[1, {}]")


def test_space_between_the_parts_of_json_has_an_end_unless_the_schema_says_otherwise(vocabulary: LLTokenizer) -> None:
    text = '{"a":' + " " * 65 + "1}"
    assert accepts(vocabulary, AnyJson(), text.replace(" ", "", 1))
    assert not accepts(vocabulary, AnyJson(), text)
    assert accepts(vocabulary, JsonSchema(schema={"type": "object", "x-guidance": {}}), text)
    compact = JsonSchema(schema={"type": "object", "x-guidance": {"whitespace_flexible": False}})
    assert accepts(vocabulary, compact, '{"a":1}')
    assert not accepts(vocabulary, compact, '{"a": 1}')


@pytest.mark.parametrize("pattern", ["a+b", "^a+b$", "^(?:a+)b$"])
def test_a_regex_matches_the_answer_as_a_whole(vocabulary: LLTokenizer, pattern: str) -> None:
    assert accepts(vocabulary, Regex(pattern=pattern), "aab")
    assert not accepts(vocabulary, Regex(pattern=pattern), "aabc")
    assert not accepts(vocabulary, Regex(pattern=pattern), "xaab")


@pytest.mark.parametrize("text", ["yes", 'say "no"', "back\\slash", "a\nb", "한국어 🙂", "*.+?[", " lead", "/x/"])
def test_a_choice_is_one_of_its_texts_to_the_letter(vocabulary: LLTokenizer, text: str) -> None:
    constraint = choice(["maybe", text], param="guided_choice")
    assert accepts(vocabulary, constraint, text)
    assert accepts(vocabulary, constraint, "maybe")
    assert not accepts(vocabulary, constraint, "mayb")


def test_thousands_of_choices_compile(vocabulary: LLTokenizer) -> None:
    constraint = choice([f"value {i}" for i in range(4096)], param="guided_choice")
    rehearse(make_matcher(vocabulary, grammar_text(constraint)))
    assert accepts(vocabulary, constraint, "value 4095")


def test_lark_and_gbnf_are_told_apart(vocabulary: LLTokenizer) -> None:
    lark = Lark(grammar='start: word " "? word\nword: /[a-z]+/')
    gbnf = Lark(grammar='root ::= word " "? word\nword ::= [a-z]+\n')
    for constraint in (lark, gbnf):
        assert accepts(vocabulary, constraint, "ab cd")
        assert not accepts(vocabulary, constraint, "ab 1")


@pytest.mark.parametrize("grammar", ["root ::= (", "root ::= foo", "start ::= 'a'", "::=" + "(" * 5000])
def test_a_bad_gbnf_is_the_requests_fault(vocabulary: LLTokenizer, grammar: str) -> None:
    with pytest.raises((RequestError, UnusableGrammarError)) as refused:
        make_matcher(vocabulary, grammar_text(Lark(grammar=grammar, param="ebnf")))
    if isinstance(refused.value, RequestError):
        assert (refused.value.status, refused.value.param) == (400, "ebnf")


@pytest.mark.parametrize(
    "constraint",
    [
        Regex(pattern="a" * (MAX_REGEX_BYTES + 1), param="p"),
        Lark(grammar="root ::= " + "a" * MAX_GBNF_BYTES, param="p"),
        JsonSchema(schema={"enum": ["x" * 1000 + str(i) for i in range(300)]}, param="p"),
        JsonSchema(schema={"const": 10**400}, param="p"),
        JsonSchema(schema=False, param="p"),
        JsonSchema(schema=json.loads('{"items":' * 300 + "{}" + "}" * 300), param="p"),
    ],
)
def test_what_cannot_be_put_into_a_grammar_is_refused(constraint: Constraint) -> None:
    with pytest.raises(RequestError) as refused:
        grammar_text(constraint)
    assert (refused.value.status, refused.value.param) == (400, "p")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"type": "strin"}, "strin"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "no text satisfies"),
        ({"type": "object", "properties": {f"p{i}": {} for i in range(700)}}, "too many alternatives"),
    ],
)
def test_what_cannot_be_compiled_is_named(
    vocabulary: LLTokenizer, schema: dict[str, object] | bool, reason: str
) -> None:
    with pytest.raises(UnusableGrammarError, match=reason):
        rehearse(make_matcher(vocabulary, grammar_text(JsonSchema(schema=schema))))


def test_a_tokenizer_that_llguidance_does_not_know_is_told(word_piece: Tokenizer) -> None:
    facts = VocabularyFacts(tokenizer_json=word_piece.to_json(), vocab_size=400, eos_token_ids=(2,))
    with pytest.raises(UnusableGrammarError, match="not supported"):
        load_vocabulary(facts)


def test_equal_grammars_have_equal_texts() -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    assert grammar_text(JsonSchema(schema=schema)) == grammar_text(JsonSchema(schema=dict(schema), param="other"))
