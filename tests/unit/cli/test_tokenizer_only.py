"""The tokenizer alone: the same that a server has, with fewer files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.tiny_models import make_tiny, make_tiny_tokenizer

from pagefall.cli import tokenizer_only
from pagefall.cli.tokenizer_only import load_tokenizer_only
from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model.embedded import ensure_embedded
from pagefall.model.unpacked import unpacked_folder
from pagefall.text.requests import ChatMessage
from pagefall.text.tokenizer import load_tokenizer

TEXT = "It is 2026-03-14 09:00:00 in Zürich."
CHAT = (ChatMessage("user", TEXT),)


def test_without_a_path_it_is_the_embedded_models() -> None:
    own, served = load_tokenizer_only(ModelConfig()), load_tokenizer(ensure_embedded())
    assert own.apply_chat_template(CHAT) == served.apply_chat_template(CHAT)
    assert own.encode(TEXT, add_special_tokens=True).tolist() == served.encode(TEXT, add_special_tokens=True).tolist()


def test_a_folder_needs_no_weights_and_a_template_may_replace_its_own(tmp_path: Path) -> None:
    folder = make_tiny_tokenizer(tmp_path / "tokenizer")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}!"
    for config in (
        ModelConfig(tokenizer_path=str(folder), model_path="/nowhere", chat_template=template),
        ModelConfig(model_path=str(folder), chat_template=template),
    ):
        assert load_tokenizer_only(config).apply_chat_template(CHAT) == f"{TEXT}!"


def test_a_gguf_file_that_was_served_before_is_read_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", str(tmp_path / "cache"))
    gguf = tmp_path / "some.gguf"
    gguf.write_bytes(b"GGUF" + bytes(100))
    shutil.copytree(make_tiny_tokenizer(make_tiny("llama", tmp_path / "made")), unpacked_folder(gguf, "auto"))
    assert load_tokenizer_only(ModelConfig(model_path=str(gguf))).has_chat_template


def test_a_gguf_file_that_cannot_be_unpacked_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", str(tmp_path / "cache"))
    # The process that unpacks imports torch, which takes seconds; this one only fails as it does.
    monkeypatch.setattr(tokenizer_only, "_UNPACK", "import sys; sys.exit('Traceback\\n' + sys.argv[1] + ' is cut off')")
    gguf = tmp_path / "broken.gguf"
    gguf.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match=r"No tokenizer could be made of .*broken\.gguf: .*broken\.gguf is cut off"):
        load_tokenizer_only(ModelConfig(model_path=str(gguf)))


def test_a_path_that_does_not_exist_names_its_flag(tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    for flag, config in (("tokenizer", ModelConfig(tokenizer_path=none)), ("model", ModelConfig(model_path=none))):
        with pytest.raises(ModelError, match=f"--{flag}-path .* does not exist"):
            load_tokenizer_only(config)
