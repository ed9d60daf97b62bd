from __future__ import annotations

import pytest
from tests.byte_tokenizer import byte_tokenizer

from pagefall.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()
