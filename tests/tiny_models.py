"""Random checkpoints small enough for a unit test, one for every way of attending that is served.

Weights are drawn wider than a real model's, so that greedy answers vary from token to token and from prompt to prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gguf
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE: Final = 512
CONTEXT_LENGTH: Final = 8192

_COMMON: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_LENGTH,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
_MIXTURE: Final[dict[str, Any]] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_WINDOW: Final = 64
_GEMMA: Final[dict[str, Any]] = {
    "sliding_window": _WINDOW,
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": False,  # tied, a random Gemma repeats its last token for ever
}

KINDS: Final[dict[str, dict[str, Any]]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": _MIXTURE,
    "mistral": {"sliding_window": _WINDOW},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 5.0},
    "gemma3_text": {**_GEMMA, "sliding_window_pattern": 2},
    "phi3": {},
    "gpt_oss": {"sliding_window": _WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {},
    "olmo2": {},
    "granite": {},
    "smollm3": {"no_rope_layer_interval": 2},
    "deepseek_v3": {
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "num_key_value_heads": 4,
        "head_dim": 8,
    },
}
"""`model_type` and what its configuration says beyond the common."""


def make_tiny(
    kind: str,
    folder: Path,
    *,
    vocab_size: int = VOCAB_SIZE,
    num_layers: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> Path:
    """Save a random `kind` of `KINDS` into `folder` and return it. `settings` override its configuration."""
    values = {**_COMMON, "vocab_size": vocab_size, "num_hidden_layers": num_layers, **KINDS[kind], **settings}
    if kind == "gpt2":
        values["n_inner"] = values.pop("intermediate_size")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values), dtype=dtype)
    model.save_pretrained(folder)
    return folder


def make_tiny_gguf(source: Path, path: Path) -> Path:
    """Save the Llama checkpoint in `source` as a float32 GGUF file at `path`, as llama.cpp's converter would."""
    model = AutoModelForCausalLM.from_pretrained(source)
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{index}" for index in range(config.vocab_size)])
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_eot_token_id(3)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        weight = parameter.detach()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # llama.cpp rotates neighbouring pairs where transformers rotates halves.
            weight = weight.view(-1, 2, config.head_dim // 2, config.hidden_size).transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_SENTENCES: Final = (
    "The quick brown fox jumps over the lazy dog.",
    "A page is a fixed number of token slots; a prompt that was seen before is not computed again.",
    "def add(left: int, right: int) -> int:\n    return left + right\n",
    "안녕하세요, 만나서 반갑습니다. 오늘 날씨가 좋네요.",
    "What is the capital of France? The capital of France is Paris.",
)
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def make_tiny_tokenizer(folder: Path, *, vocab_size: int = VOCAB_SIZE) -> Path:
    """Save a byte-level BPE tokenizer with a chat template into `folder` and return it.

    Ids 0 and 1 are `<|start|>` and `<|end|>`, the beginning and end tokens of `make_tiny`'s models.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|start|>", eos_token="<|end|>")
    fast.chat_template = _CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return folder
