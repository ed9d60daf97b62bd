"""Paged attention against the textbook: softmax(QK^T)V over each sequence's own context, in one piece."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagefall.config import CompileMode
from pagefall.messages import RequestId, SamplingParams, SequenceStep
from pagefall.model.attention import PagedAttention
from pagefall.model.attention_options import AttentionOptions
from pagefall.model.kv_pool import KVPool, LayerShape
from pagefall.model.scripting import script
from pagefall.model.step_layout import StepLayout

CPU = torch.device("cpu")
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, NUM_PAGES = 6, 2, 16, 16, 400


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int, options: AttentionOptions
) -> torch.Tensor:
    """query `[num_queries, num_heads, head_dim]` from position `first` on; key, value `[context, num_kv_heads, -]`."""
    group = NUM_HEADS // NUM_KV_HEADS
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query.double(), key.double()) * options.scale
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    rows = torch.arange(first, first + query.shape[0])[:, None]
    columns = torch.arange(key.shape[0])[None]
    hidden = columns > rows
    if options.sliding_window is not None:
        hidden |= columns <= rows - options.sliding_window
    scores = scores.masked_fill(hidden, float("-inf"))
    if options.sinks is not None:
        column = options.sinks.double()[:, None, None].expand(-1, query.shape[0], 1)
        weights = torch.softmax(torch.cat((scores, column), -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return torch.einsum("hqk,khd->qhd", weights, value.double()).flatten(1)


class Rig:
    """A pool and the full keys and values of some sequences, to be attended to in steps."""

    def __init__(
        self,
        lengths: list[int],
        *,
        dtype: torch.dtype = torch.float32,
        shuffled: bool = False,
        mode: CompileMode = "on",
    ) -> None:
        self.scripted = script(mode)
        generator = torch.Generator().manual_seed(1)
        order = np.random.default_rng(1).permutation(NUM_PAGES) if shuffled else np.arange(NUM_PAGES)
        self.pool = KVPool(
            [LayerShape(NUM_KV_HEADS, HEAD_DIM, HEAD_DIM)],
            num_pages=NUM_PAGES,
            page_size=PAGE_SIZE,
            dtype=dtype,
            device=CPU,
        )
        self.pages: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
        self.query: list[torch.Tensor] = []
        self.key: list[torch.Tensor] = []
        self.value: list[torch.Tensor] = []
        used = 0
        for length in lengths:
            num_pages = -(-length // PAGE_SIZE)
            self.pages.append(order[used : used + num_pages].astype(np.int32))
            used += num_pages
            for tensors, num_heads in ((self.query, NUM_HEADS), (self.key, NUM_KV_HEADS), (self.value, NUM_KV_HEADS)):
                tensors.append(torch.randn(length, num_heads, HEAD_DIM, generator=generator).to(dtype))

    def step(
        self, spans: list[tuple[int, int, int]], options: AttentionOptions, *, decode: bool = False
    ) -> torch.Tensor:
        """Attend `[start, end)` of sequence `index` for each `(index, start, end)`, all in one step.

        `decode`: as tokens of an answer.
        """
        layout = StepLayout(
            [
                SequenceStep(
                    request_id=RequestId(str(index)),
                    token_ids=np.zeros(end, dtype=np.uint32),
                    start=start,
                    page_ids=self.pages[index],
                    num_prompt_tokens=start if decode else end,
                    sampling=SamplingParams(),
                )
                for index, start, end in spans
            ],
            page_size=PAGE_SIZE,
            device=CPU,
        )
        rows = len(layout.token_ids)
        flat = []
        for tensors in (self.query, self.key, self.value):
            joined = torch.cat([tensors[index][start:end] for index, start, end in spans])
            flat.append(torch.cat((joined, joined.new_ones(rows - len(joined), *joined.shape[1:]))))
        output = PagedAttention(layout, self.pool, self.scripted).attend(0, flat[0], flat[1], flat[2], options)
        assert (output[layout.num_rows :] == 0).all()
        return output[: layout.num_rows]


OPTIONS = {
    "plain": AttentionOptions(scale=0.25),
    "window": AttentionOptions(scale=0.25, sliding_window=50),
    "window past a tile": AttentionOptions(scale=0.25, sliding_window=1100),
    "window of one": AttentionOptions(scale=0.25, sliding_window=1),
    "softcap": AttentionOptions(scale=0.25, softcap=2.0),
    "sinks": AttentionOptions(scale=0.25, sinks=torch.linspace(-2, 3, NUM_HEADS)),
    "all": AttentionOptions(scale=0.25, sliding_window=70, softcap=3.0, sinks=torch.linspace(-2, 3, NUM_HEADS)),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("shuffled", [False, True], ids=["contiguous", "shuffled"])
@pytest.mark.parametrize("chunk", [1, 100, 512, 1300])
def test_chunks_of_any_size_equal_the_whole(options: AttentionOptions, shuffled: bool, chunk: int) -> None:
    length = 1300 if chunk > 1 else 90
    rig = Rig([length], shuffled=shuffled)
    expected = reference(rig.query[0], rig.key[0], rig.value[0], 0, options)
    for start in range(0, length, chunk):
        end = min(length, start + chunk)
        output = rig.step([(0, start, end)], options)
        torch.testing.assert_close(output.double(), expected[start:end], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("decode", [False, True], ids=["last of a prompt", "answer"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["contiguous", "shuffled"])
def test_sequences_of_one_step_do_not_see_each_other(options: AttentionOptions, decode: bool, shuffled: bool) -> None:
    lengths = [2, 17, 300, 1200, 64, 2300]
    rig = Rig(lengths, shuffled=shuffled)
    for index, length in enumerate(lengths):
        rig.step([(index, 0, length - 1)], options)
    output = rig.step([(index, length - 1, length) for index, length in enumerate(lengths)], options, decode=decode)
    for index, length in enumerate(lengths):
        expected = reference(rig.query[index][-1:], rig.key[index], rig.value[index], length - 1, options)
        torch.testing.assert_close(output[index : index + 1].double(), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 500, 1024, 1025, 2048, 3000])
@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_token_alone_sees_its_whole_context(length: int, mode: CompileMode) -> None:
    options = OPTIONS["plain"]
    rig = Rig([length], mode=mode)
    if length > 1:
        rig.step([(0, 0, length - 1)], options)
    output = rig.step([(0, length - 1, length)], options, decode=True)
    expected = reference(rig.query[0][-1:], rig.key[0], rig.value[0], length - 1, options)
    torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=1e-4)


def test_in_bfloat16_a_decoded_token_does_not_depend_on_the_order_of_pages() -> None:
    options = OPTIONS["plain"]
    outputs = []
    for shuffled in (False, True):
        rig = Rig([2100, 1500, 100, 200], dtype=torch.bfloat16, shuffled=shuffled)
        ends = [(index, length - 1, length) for index, length in enumerate((2100, 1500, 100, 200))]
        for index, start, _ in ends:
            rig.step([(index, 0, start)], options)
        outputs.append(rig.step(ends, options, decode=True))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("name", ["plain", "window", "sinks"])
def test_in_bfloat16_chunks_and_page_order_change_no_bit(name: str) -> None:
    options = OPTIONS[name]
    whole = Rig([2100], dtype=torch.bfloat16).step([(0, 0, 2100)], options)
    for shuffled in (False, True):
        rig = Rig([2100, 40], dtype=torch.bfloat16, shuffled=shuffled)
        for start, end in ((0, 16), (16, 700), (700, 1024), (1024, 2099)):
            assert torch.equal(rig.step([(0, start, end)], options), whole[start:end])
        mixed = rig.step([(0, 2099, 2100), (1, 0, 40)], options)
        assert torch.equal(mixed[:1], whole[2099:])
