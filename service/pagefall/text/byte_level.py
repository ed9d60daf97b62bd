"""Byte-level vocabularies, where each token is a run of bytes spelled with one printable character a byte.

The spelling is GPT-2's (Radford et al., 2019, `encoder.py`): printable Latin-1 characters stand for themselves, the
other 68 byte values for U+0100 and up, in order.
"""

from __future__ import annotations

import json
from typing import Any, Final

import tokenizers


def _byte_of_character() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER: Final = _byte_of_character()


def byte_level_bytes(spelling: str) -> bytes:
    """The bytes of a token; one that uses any other character (an added token) stands for its own UTF-8."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in spelling])
    except KeyError:
        return spelling.encode()


def is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """Whether the decoder does nothing but join the bytes of the tokens."""
    if backend.decoder is None:
        return False
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return [step["type"] for step in decoder.get("decoders", [decoder])] == ["ByteLevel"]
