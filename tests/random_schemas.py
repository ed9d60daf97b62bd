"""Random JSON schemas of every kind that constrained output knows, small enough for a model that writes at random."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from jsonschema import Draft202012Validator

Schema = dict[str, Any]

_WORDS: Final = (
    "id",
    "name",
    "größe",
    "이름",
    "タグ",
    "a b",
    'quo"te',
    "back\\slash",
    "line\nbreak",
    "🙂",
    "$ref",
    "x-y",
)
_FORMATS: Final = ("date-time", "date", "time", "uuid", "ipv4", "duration")
_PATTERNS: Final = (r"^[a-z]{1,4}$", r"^\d{3}-\d{4}$", r"^(foo|bar)+?baz$", r"^[가-힣]{1,3}$", r"^[^\"\\]{0,5}$")


def random_schema(seed: int) -> Schema:
    """The same for the same seed: nested objects and arrays, enums, `anyOf`, `allOf`, `$ref`, formats, bounds."""
    source = _Source(random.Random(seed))
    schema = source.object(depth=3) if seed % 4 else source.any(depth=3)
    if source.uses_defs:
        schema = {**schema, "$defs": source.defs()}
    return schema


def breaches(schema: Schema, text: str) -> list[str]:
    """What is wrong with `text` as JSON of this schema, formats included; nothing if it validates."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return [f"no JSON: {error}"]
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return [error.message for error in validator.iter_errors(value)]


class _Source:
    def __init__(self, random: random.Random) -> None:
        self._random = random
        self.uses_defs = False

    def any(self, depth: int) -> Schema:
        kinds = [self.string, self.number, self.enum, self.constant]
        if depth:
            kinds += [self.nested_object, self.nested_array, self.any_of, self.reference, self.nullable, self.all_of]
        return self._random.choice(kinds)(depth)

    def object(self, depth: int) -> Schema:
        names = self._random.sample(_WORDS, self._random.randint(0, 4))
        required = [name for name in names if self._random.random() < 0.6]
        extra: Schema = {"additionalProperties": False} if self._random.random() < 0.8 else {}
        if extra == {} and self._random.random() < 0.5:
            extra = {"additionalProperties": self.number(0)}
        properties = {name: self.any(depth - 1) for name in names}
        return {"type": "object", "properties": properties, "required": required, **extra}

    def nested_object(self, depth: int) -> Schema:
        return self.object(depth)

    def nested_array(self, depth: int) -> Schema:
        fewest = self._random.randint(0, 2)
        schema: Schema = {"type": "array", "minItems": fewest, "maxItems": fewest + self._random.randint(0, 2)}
        if self._random.random() < 0.3:
            return {**schema, "prefixItems": [self.string(0), self.number(0)], "items": self.any(depth - 1)}
        return {**schema, "items": self.any(depth - 1)}

    def any_of(self, depth: int) -> Schema:
        return {"anyOf": [self.any(depth - 1) for _ in range(self._random.randint(2, 3))]}

    def all_of(self, depth: int) -> Schema:
        first = {"type": "object", "properties": {"id": self.number(0)}, "required": ["id"]}
        second = {"type": "object", "properties": {"name": self.string(0)}, "additionalProperties": self.string(0)}
        return {"allOf": [first, {key: second[key] for key in ("type", "properties")}]}

    def nullable(self, depth: int) -> Schema:
        return {"type": [self._random.choice(("string", "integer", "boolean")), "null"], "maxLength": 8}

    def reference(self, depth: int) -> Schema:
        self.uses_defs = True
        return {"$ref": f"#/$defs/{self._random.choice(('tree', 'colour'))}"}

    def defs(self) -> Schema:
        return {
            "tree": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "minimum": 0, "maximum": 99},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["value"],
                "additionalProperties": False,
            },
            "colour": {"enum": ["rot", "grün", "파랑"]},
        }

    def string(self, depth: int) -> Schema:
        match self._random.randrange(4):
            case 0:
                return {"type": "string", "format": self._random.choice(_FORMATS)}
            case 1:
                return {"type": "string", "pattern": self._random.choice(_PATTERNS)}
            case _:
                shortest = self._random.randint(0, 4)
                return {"type": "string", "minLength": shortest, "maxLength": shortest + self._random.randint(0, 9)}

    def number(self, depth: int) -> Schema:
        match self._random.randrange(4):
            case 0:
                return {"type": "boolean"}
            case 1:
                return {"type": "number", "minimum": -1.5, "exclusiveMaximum": 10}
            case 2:
                return {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500}
            case _:
                low = self._random.randint(-1000, 1000)
                return {"type": "integer", "minimum": low, "maximum": low + self._random.randint(0, 10_000)}

    def enum(self, depth: int) -> Schema:
        return {"enum": self._random.sample([*_WORDS, 1, 2.5, None, True, ["a", 1], {"k": "v"}], 3)}

    def constant(self, depth: int) -> Schema:
        return {"const": self._random.choice([*_WORDS, 0, False, None])}
