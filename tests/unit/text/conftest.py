"""Real and tiny tokenizers, one of each family of decoders."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from pagefall.model.embedded import ensure_embedded
from pagefall.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and it's done.",
    "다람쥐 헌 쳇바퀴에 타고파. 안녕하세요 여러분",
    "def f(x):\n    return x ** 2  # naïve café",
    "日本語のテキスト 👩‍👩‍👧 🇰🇷 👍🏽",
] * 4
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content == 'refuse' %}{{ raise_exception('no such turns') }}"
    "{% endif %}{{ m.content }}{{ mood }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def wrap(backend: Backend) -> Tokenizer:
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", bos_token="<s>")
    fast.chat_template = CHAT_TEMPLATE
    return Tokenizer(fast)


def byte_level_backend() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<a tool 도구>", special=False)])
    return backend


def byte_fallback_backend() -> Backend:
    """What `transformers` makes of a Llama 2 `tokenizer.model`."""
    text = "".join(CORPUS[:1] + CORPUS[2:3]).replace(" ", "▁").replace("\n", "")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(set(text))]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "q"), ("o", "x"), ("▁", "▁")]
    tokens += [left + right for left, right in merges]
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    return backend


def metaspace_backend() -> Backend:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def word_piece_backend() -> Backend:
    backend = Backend(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"])
    backend.train_from_iterator(CORPUS, trainer)
    return backend


@pytest.fixture(scope="session")
def embedded() -> Tokenizer:
    """The embedded model's tokenizer, as it was rebuilt from a GGUF file."""
    return load_tokenizer(ensure_embedded())


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return wrap(byte_level_backend())


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    return wrap(byte_fallback_backend())


@pytest.fixture(scope="session")
def tokenizers_of_bytes(byte_level: Tokenizer, byte_fallback: Tokenizer) -> list[Tokenizer]:
    """Those that may cut a character in four."""
    return [byte_level, byte_fallback]


@pytest.fixture(scope="session")
def metaspace() -> Tokenizer:
    return wrap(metaspace_backend())


@pytest.fixture(scope="session")
def word_piece() -> Tokenizer:
    return wrap(word_piece_backend())


@pytest.fixture(scope="session")
def awkward() -> Tokenizer:
    """Composes characters, and has tokens that reach into each other, or take the spaces beside them."""
    backend = byte_level_backend()
    backend.normalizer = normalizers.NFC()
    backend.add_special_tokens(["<turn>", "<end>", "<|a|>", "x<turn>y", "<x", "EOT"])
    backend.add_tokens([AddedToken("foo", single_word=True)])
    backend.add_special_tokens([AddedToken("<sp>", lstrip=True, rstrip=True), AddedToken("é<e>", normalized=True)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", bos_token="<s>")
    fast.chat_template = (
        "{% for m in messages %}<turn>{{ m.content }}<end>{% endfor %}{# <|a|> <sp> é<e> x<turn>y <x EOT #}"
    )
    return Tokenizer(fast)


@pytest.fixture(scope="session")
def splitting() -> Tokenizer:
    """Special tokens in a text are text to it."""
    backend = byte_level_backend()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", split_special_tokens=True)
    return Tokenizer(fast)


@pytest.fixture(params=["embedded", "byte_level", "byte_fallback", "metaspace", "word_piece"], scope="session")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer = request.getfixturevalue(request.param)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer
