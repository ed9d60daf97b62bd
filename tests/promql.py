"""What a PromQL expression asks for: names, matchers, the labels it groups by. Its syntax is for promtool to check."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple, cast

from prometheus_client.parser import text_string_to_metric_families

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<number>\d[\w.]*)
    |(?P<word>[a-zA-Z_:][\w:]*)
    |(?P<sign>=~|!~|!=|==|<=|>=|.)""",
    re.VERBOSE,
)
_LISTS: Final = {"by", "without", "on", "ignoring", "group_left", "group_right"}
"""What a list of labels may follow."""
_KEYWORDS: Final = _LISTS | {"and", "or", "unless", "offset", "bool", "sum", "avg", "max", "min", "count"}

Operator = Literal["=", "!=", "=~", "!~"]

Live = Mapping[str, Mapping[str, frozenset[str]]]
"""Name of a sample, label, its values."""


class Matcher(NamedTuple):
    label: str
    operator: Operator
    value: str

    def matches(self, value: str) -> bool:
        found = self.value == value if self.operator in ("=", "!=") else re.fullmatch(self.value, value) is not None
        return found != self.operator.startswith("!")


class Query(NamedTuple):
    """`selectors`: a name and its matchers, in order. `labels`: all that stand in `by`, `on` and their like."""

    selectors: list[tuple[str, list[Matcher]]]
    labels: set[str]


def parse(expression: str) -> Query:
    """Of a correct expression; comments and names in braces are not understood."""
    tokens = [match for match in _TOKEN.finditer(expression) if match.lastgroup != "space"]
    words = [token.group() for token in tokens]
    selectors: list[tuple[str, list[Matcher]]] = []
    labels: set[str] = set()
    position = 0
    while position < len(tokens):
        word, following = words[position], (words[position + 1 :] or [""])[0]
        is_word = tokens[position].lastgroup == "word"
        position += 1
        if is_word and word in _LISTS:
            if following == "(":
                end = words.index(")", position)
                labels |= set(words[position + 1 : end]) - {","}
                position = end + 1
        elif is_word and word not in _KEYWORDS and following != "(":
            matchers: list[Matcher] = []
            if following == "{":
                end = words.index("}", position)
                matchers = list(_matchers(words[position + 1 : end]))
                position = end + 1
            selectors.append((word, matchers))
    return Query(selectors, labels)


def live(text: str) -> Live:
    """What is in the answer of a `/metrics`."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found[sample.name]
            for label, value in sample.labels.items():
                labels[label].add(value)
    return {name: {label: frozenset(values) for label, values in labels.items()} for name, labels in found.items()}


def complaints(expression: str, live: Live) -> list[str]:
    """What of the expression nothing in `live` answers to. Prometheus itself adds `job` and `instance`."""
    query = parse(expression)
    said: list[str] = []
    known = {"job", "instance"}
    for name, matchers in query.selectors:
        labels = live.get(name)
        if labels is None:
            said.append(f"there is no {name}")
            continue
        known |= labels.keys()
        for matcher in matchers:
            if matcher.label in ("job", "instance"):
                continue
            if matcher.label not in labels:
                said.append(f"{name} has no label {matcher.label}")
            elif not any(matcher.matches(value) for value in labels[matcher.label]):
                said.append(f"no {matcher.label} of {name} is {matcher.operator}{matcher.value!r}")
    said += [f"nothing has a label {label}" for label in sorted(query.labels - known)]
    return said


def _matchers(words: list[str]) -> Iterator[Matcher]:
    """Of what stands between braces: label, operator and value, with commas between."""
    for index in range(0, len(words), 4):
        label, operator, value = words[index : index + 3]
        yield Matcher(label, cast("Operator", operator), value[1:-1])
