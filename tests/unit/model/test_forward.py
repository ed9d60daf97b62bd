"""The fused forward: chosen where it is known, refused where it differs, the same in all its ways of computing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny_models import VOCAB_SIZE, make_tiny
from transformers import AutoModelForCausalLM, PreTrainedModel

from pagefall.config import CompileMode
from pagefall.errors import ModelError
from pagefall.messages import RequestId, SamplingParams, SequenceStep
from pagefall.model.attention import PagedAttention
from pagefall.model.decode_attention import attend_tokens
from pagefall.model.forward import Forward, choose_forward
from pagefall.model.fused import FusedForward, _RMSNorm
from pagefall.model.hf_model import HFForward
from pagefall.model.kv_pool import KVPool, LayerShape
from pagefall.model.scripting import Scripted, script
from pagefall.model.step_layout import StepLayout

CPU = torch.device("cpu")
LAYERS = [LayerShape(2, 16, 16)] * 2
FUSED = ("llama", "mistral", "qwen2", "qwen3")
WINDOW = {"mistral": 64}


def load(kind: str, folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(make_tiny(kind, folder)).eval()
    return model


def choose(kind: str, model: PreTrainedModel, *, plain: bool = True, mode: CompileMode = "on") -> Forward:
    windows = [WINDOW.get(kind)] * 2
    return choose_forward(model, LAYERS, windows, script(mode), keeps_plain_weights=plain)


def logits_of(forward: Forward, batch: int, scripted: Scripted) -> torch.Tensor:
    """Logits of the third answer token of `batch` sequences of 100 tokens and more, prefilled and decoded."""
    pool = KVPool(LAYERS, num_pages=200, page_size=4, dtype=torch.float32, device=CPU)
    random = np.random.default_rng(0)
    prompts = [random.integers(0, VOCAB_SIZE, 100 + 3 * index) for index in range(batch)]
    pages = np.random.default_rng(1).permutation(200).astype(np.int32)
    logits = torch.empty(0)
    for step in range(4):
        sequences = [
            SequenceStep(
                request_id=RequestId(str(index)),
                token_ids=np.append(prompt, range(step)).astype(np.uint32),
                start=len(prompt) + step - 1 if step else 0,
                page_ids=pages[index * 40 : index * 40 + 40],
                num_prompt_tokens=len(prompt),
                sampling=SamplingParams(),
            )
            for index, prompt in enumerate(prompts)
        ]
        layout = StepLayout(sequences, page_size=4, device=CPU)
        with torch.inference_mode():
            logits = forward(layout, PagedAttention(layout, pool, scripted))[:batch]
    return logits


@pytest.mark.parametrize("kind", FUSED)
def test_the_common_decoder_is_fused_and_gives_the_logits_of_transformers(kind: str, tmp_path: Path) -> None:
    model = load(kind, tmp_path)
    forward = choose(kind, model)
    assert isinstance(forward, FusedForward)
    for batch in (1, 3):
        expected = logits_of(HFForward(model), batch, script("off"))
        torch.testing.assert_close(logits_of(forward, batch, script("on")), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("plain", [True, False])
def test_every_way_of_decoding_gives_the_same(kind: str, mode: CompileMode, plain: bool, tmp_path: Path) -> None:
    model = load(kind, tmp_path)
    forward = choose(kind, model, plain=plain, mode=mode)
    together = logits_of(forward, 3, script(mode))
    alone = logits_of(forward, 1, script(mode))
    torch.testing.assert_close(alone, together[:1], atol=1e-3, rtol=1e-4)


def test_in_bfloat16_the_likeliest_tokens_are_told_apart_as_float32_does(tmp_path: Path) -> None:
    model = load("llama", tmp_path).to(torch.bfloat16)
    forward = choose("llama", model)
    assert isinstance(forward, FusedForward)
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = hidden.float() @ model.lm_head.weight.detach().float().T
    rounded = exact.bfloat16()
    sharpened = forward._sharpened(rounded, hidden)
    top = rounded.float().topk(8).indices
    torch.testing.assert_close(sharpened.gather(1, top), exact.gather(1, top))
    assert torch.equal(sharpened.argmax(-1), exact.argmax(-1))


def test_other_models_keep_their_own_forward(tmp_path: Path) -> None:
    assert isinstance(choose("gpt2", load("gpt2", tmp_path)), HFForward)


def test_a_fused_form_that_differs_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load("llama", tmp_path)
    of = _RMSNorm.of

    def wrong(module: Any) -> _RMSNorm:
        norm = of(module)
        return norm._replace(scaled_weight=norm.scaled_weight.roll(1) * torch.linspace(0.2, 2, len(norm.scaled_weight)))

    monkeypatch.setattr(_RMSNorm, "of", wrong)
    with caplog.at_level(logging.WARNING):
        assert isinstance(choose("llama", model), HFForward)
    assert "differs" in caplog.text


def test_where_torch_does_not_script_auto_goes_on_in_python_and_on_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("no more scripts\nat all")

    monkeypatch.setattr(torch.jit, "script", refuse)
    with caplog.at_level(logging.WARNING):
        assert script("auto").attend_tokens is attend_tokens
    assert "no more scripts" in caplog.text
    with pytest.raises(ModelError, match="--compile on: this torch does not script the decode step"):
        script("on")
