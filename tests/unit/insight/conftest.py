"""Tokenizers as prompts are encoded with them."""

from __future__ import annotations

import pytest
from tests.byte_tokenizer import byte_tokenizer
from tests.unit.text.conftest import byte_fallback_backend, wrap

from pagefall.model.embedded import ensure_embedded
from pagefall.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def smol() -> Tokenizer:
    """SmolLM2's: byte-level, with a template that adds a system prompt where there is none."""
    return load_tokenizer(ensure_embedded())


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """A token a byte."""
    return byte_tokenizer()


@pytest.fixture(scope="session")
def llama() -> Tokenizer:
    """As of Llama 2: it puts a token and a space before a text, and decoding does not give the text back."""
    return wrap(byte_fallback_backend())
