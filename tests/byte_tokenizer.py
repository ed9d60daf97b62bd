"""A real tokenizer that is easy to think about: token id = byte, and 256 ends an answer."""

from __future__ import annotations

from typing import Final

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pagefall.text.tokenizer import Tokenizer

EOS: Final = 256

CHAT_TEMPLATE: Final = (
    "{% for m in messages %}{% if m.content == 'refuse' %}{{ raise_exception('no such turns') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer(chat_template: str = CHAT_TEMPLATE) -> Tokenizer:
    # How byte-level vocabularies spell bytes: printable ones as themselves, the others from U+0100 on.
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    backend = Backend(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    fast.chat_template = chat_template
    assert fast.eos_token_id == EOS
    return Tokenizer(fast)
