"""A model's tokenizer: text to token ids and back, token bytes, and the chat template.

Everything here may be called from several threads at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import jinja2
import numpy as np
import tokenizers
from transformers import AutoTokenizer

from pagefall.errors import ModelError, RequestError
from pagefall.messages import TokenIds
from pagefall.text.byte_level import byte_level_bytes, is_byte_level
from pagefall.text.requests import ChatMessage, Tool
from pagefall.text.template_messages import TemplateTraits
from pagefall.text.tool_prompt import as_plain_messages
from pagefall.text.tool_schema import as_function

_TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What running a template may raise: Jinja's own errors, and Python's from the expressions in it."""


class EncodedText:
    """A text's token ids, and which characters of it each of them stands for."""

    def __init__(self, encoding: tokenizers.Encoding) -> None:
        self.token_ids: TokenIds = np.array(encoding.ids, dtype=np.uint32)
        self._encoding = encoding

    def span(self, index: int) -> tuple[int, int] | None:
        """Start and end of token `index` in the text; None for a token that the tokenizer added.

        A token that is a part of a character has the whole character. Spaces at a token's ends may be left out.
        """
        span: tuple[int, int] | None = self._encoding.token_to_chars(index)
        return span


class Tokenizer:
    """Wraps a `transformers` fast tokenizer: the Rust tokenizer below it for text, itself for the chat template."""

    def __init__(self, fast: Any) -> None:
        """`fast` is a `transformers` tokenizer with a `backend_tokenizer`, which is set to never cut or pad."""
        self._fast = fast
        self._backend: tokenizers.Tokenizer = fast.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.eos_token_ids = frozenset[int]() if fast.eos_token_id is None else frozenset([fast.eos_token_id])
        """The id that ends a text, if there is one. A model may name more: see `model.end_tokens`."""
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        """Ids that have a token are below this number, added tokens included."""
        self.added_tokens: Mapping[int, tokenizers.AddedToken] = self._backend.get_added_tokens_decoder()
        """What is found in a text before the rest of it is encoded, by id."""
        self.splits_special_tokens: bool = self._backend.encode_special_tokens
        """Whether special tokens in a text are read as any other text."""
        self.special_token_ids = frozenset(token_id for token_id, token in self.added_tokens.items() if token.special)
        """The ids that `decode` leaves out."""
        self.is_byte_level = is_byte_level(self._backend)
        """Whether decoding is the concatenation of the tokens' bytes, as in GPT-2, Llama 3 and Qwen."""
        self.chat_template = _template_text(fast.chat_template)
        """All its text; None where there is no template."""
        self.has_chat_template = self.chat_template is not None
        self._traits = TemplateTraits(self.chat_template or "")
        self.knows_tools = self._traits.knows_tools
        """Whether the template writes tools and calls; else they are told in plain messages."""
        reserved = set(inspect.signature(fast.apply_chat_template).parameters) | {"messages"}
        self._reserved_template_names = frozenset(reserved - {"kwargs"})

    def to_json(self) -> str:
        """The text of a `tokenizer.json`: megabytes."""
        return self._backend.to_str()

    def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        """Token ids of `text`. Other Python threads run meanwhile; a few of them encoding at once are enough.

        Measured on 2 cores with fifty 6,000-token prompts: the loop's worst pause is about 40 ms with 2 threads
        encoding, 170 ms with 40.
        """
        # The batch call is the one that releases the GIL; "fast" leaves out the offsets.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return np.array(encoding.ids, dtype=np.uint32)

    def encode_with_spans(self, text: str, *, add_special_tokens: bool) -> EncodedText:
        """As `encode`, and slower: for whoever wants to know where in the text a token is."""
        [encoding] = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return EncodedText(encoding)

    def decode(self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`. Ids without a token are skipped; bytes that are no UTF-8 become U+FFFD.

        Spaces are left as they are, whatever the tokenizer's `clean_up_tokenization_spaces` says.
        """
        return self._backend.decode([int(token_id) for token_id in token_ids], skip_special_tokens=skip_special_tokens)

    def special_token_id(self, spelling: str) -> int | None:
        """The id of a special token; None where no special token is spelled so."""
        token_id = self._backend.token_to_id(spelling)
        return token_id if token_id in self.special_token_ids else None

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling (`Ġthe`, `▁the`, `<0x0A>`), None for an id without a token."""
        return self._backend.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for after other text, a special token's spelling included."""
        spelling = self.token(token_id)
        if spelling is None:
            return b""
        if self.is_byte_level:
            return byte_level_bytes(spelling)
        if (byte := byte_fallback(spelling)) is not None:
            return bytes([byte])
        # Decoded after itself, because decoders treat the first token differently.
        alone = self.decode([token_id], skip_special_tokens=False)
        return self.decode([token_id, token_id], skip_special_tokens=False)[len(alone) :].encode()

    def token_text(self, token_id: int) -> str:
        r"""`token_bytes` as text, or in the form `bytes:\xf0\x9f` where they are no UTF-8 by themselves."""
        token_bytes = self.token_bytes(token_id)
        try:
            return token_bytes.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)

    def apply_chat_template(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The conversation as the model was trained to read it, special tokens included; rendered in a sandbox.

        A template that knows no tools is given them, calls and their answers in plain messages (`text.tool_prompt`).
        `template_kwargs` become variables of the template. Raises `RequestError` naming `messages` (or
        `chat_template_kwargs`) if there is no template, the template refuses the conversation, or `template_kwargs`
        uses a name it may not.
        """
        if not self.has_chat_template:
            raise RequestError(
                "This model has no chat template: use /v1/completions, or start the server with --chat-template.",
                param="messages",
                code="no_chat_template",
            )
        if taken := sorted(self._reserved_template_names & template_kwargs.keys()):
            raise RequestError(f"chat_template_kwargs must not set '{taken[0]}'.", param="chat_template_kwargs")
        if not self._traits.knows_tools:
            messages, tools = as_plain_messages(messages, tools), ()
        refusal: Exception | None = None
        for conversation in self._traits.forms(messages):
            try:
                return str(
                    self._fast.apply_chat_template(
                        conversation,
                        tools=[as_function(tool) for tool in tools] or None,
                        tokenize=False,
                        add_generation_prompt=add_generation_prompt,
                        continue_final_message=continue_final_message,
                        **template_kwargs,
                    )
                )
            except _TEMPLATE_FAULTS as error:
                refusal = refusal or error
        # The template is the model's, the conversation the client's; whichever is at fault, this request fails.
        reason = str(refusal).splitlines() or [repr(refusal)]
        raise RequestError(
            f"The model's chat template refused the messages: {reason[0][:300]}",
            param="messages",
            code="chat_template_error",
        ) from refusal


def load_tokenizer(
    path: str | Path,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
    chat_template: str | None = None,
) -> Tokenizer:
    """Loads from a folder or hub id; `local_files_only` keeps it from asking the hub.

    `chat_template`, Jinja text, replaces the model's own. Raises `ModelError`.
    """
    try:
        fast = AutoTokenizer.from_pretrained(
            str(path),
            revision=revision or "main",
            local_files_only=local_files_only,
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines() or [repr(error)]
        raise ModelError(f"No tokenizer could be loaded from {path} (pass --tokenizer-path): {reason[0]}") from error
    if not getattr(fast, "is_fast", False):
        raise ModelError(f"The tokenizer of {path} has no fast form (tokenizer.json): convert it first.")
    if chat_template is not None:
        fast.chat_template = chat_template
    return Tokenizer(fast)


def byte_fallback(spelling: str) -> int | None:
    """The byte that a sentencepiece token like `<0x0A>` stands for, None for any other token."""
    if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
        try:
            return int(spelling[3:5], 16)
        except ValueError:
            return None
    return None


def _template_text(template: str | Mapping[str, str] | None) -> str | None:
    """Of several templates, as one for tools, all together."""
    return "\n".join(template.values()) if isinstance(template, Mapping) else template
