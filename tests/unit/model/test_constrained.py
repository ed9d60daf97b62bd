"""Constrained answers: the masks, and what the sampler makes of them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from tests.byte_tokenizer import EOS, byte_tokenizer
from tests.tiny_models import make_tiny
from transformers import AutoModelForCausalLM

from pagefall.messages import RequestId, SamplingParams, SequenceStep
from pagefall.model.constrained import Constraints
from pagefall.model.fused import FusedForward
from pagefall.model.sampling import Sampler
from pagefall.model.scripting import script
from pagefall.model.top_logits import top
from pagefall.model.truncation import NUM_CANDIDATES
from pagefall.text.constraints import Regex
from pagefall.text.grammar import grammar_text
from pagefall.text.matchers import VocabularyFacts, load_vocabulary, make_matcher

CPU = torch.device("cpu")
VOCAB_SIZE = 300
"""More than the tokenizer has, as in many models."""

PROMPT = (1, 2, 3)
GREEDY = SamplingParams(temperature=0)


class Source:
    """Compiles on every call. `discarded`: grammars that failed."""

    def __init__(self) -> None:
        self.num_made = 0
        self.discarded: list[str] = []
        self._vocabulary = load_vocabulary(
            VocabularyFacts(tokenizer_json=byte_tokenizer().to_json(), vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,))
        )

    def matcher(self, grammar: str) -> LLMatcher:
        self.num_made += 1
        return make_matcher(self._vocabulary, grammar)

    def discard(self, grammar: str) -> None:
        self.discarded.append(grammar)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def constraints(source: Source) -> Constraints:
    return Constraints(source, VOCAB_SIZE, CPU)


def step(
    answer: bytes | Sequence[int] = b"",
    *,
    pattern: str | None = None,
    request: str = "r",
    sampling: SamplingParams = GREEDY,
) -> SequenceStep:
    if pattern is not None:
        fields = {name: getattr(sampling, name) for name in SamplingParams.__struct_fields__}
        sampling = SamplingParams(**{**fields, "grammar": grammar_text(Regex(pattern=pattern))})
    token_ids = np.array([*PROMPT, *answer], dtype=np.uint32)
    return SequenceStep(
        request_id=RequestId(request),
        token_ids=token_ids,
        start=len(token_ids) - 1,
        page_ids=np.array([0], dtype=np.int32),
        num_prompt_tokens=len(PROMPT),
        sampling=sampling,
    )


def allowed(constraints: Constraints, sequence: SequenceStep) -> bytes:
    """The bytes that may come next; a zero byte stands for the end."""
    masks = constraints.masks([sequence])
    assert masks is not None
    ids = (masks.bias[0] == 0).nonzero()[:, 0].tolist()
    return bytes(0 if token_id == EOS else token_id for token_id in ids)


def test_a_step_without_grammars_has_no_masks(constraints: Constraints) -> None:
    assert constraints.masks([step(), step()]) is None
    assert constraints.masks([]) is None


def test_the_mask_follows_the_answer_token_by_token(constraints: Constraints) -> None:
    pattern = "a[bc]d?"
    assert allowed(constraints, step(b"", pattern=pattern)) == b"a"
    assert allowed(constraints, step(b"a", pattern=pattern)) == b"bc"
    assert allowed(constraints, step(b"ab", pattern=pattern)) == b"d\0"
    assert allowed(constraints, step(b"abd", pattern=pattern)) == b"\0"


def test_after_the_end_only_the_end_is_allowed(constraints: Constraints) -> None:
    assert allowed(constraints, step([ord("a"), EOS], pattern="ab?")) == b"\0"
    assert allowed(constraints, step([ord("a"), EOS, EOS], pattern="ab?")) == b"\0"


def test_only_the_rows_with_a_grammar_are_masked(constraints: Constraints) -> None:
    masks = constraints.masks([step(), step(pattern="x", request="a"), step(), step(pattern="y", request="b")])
    assert masks is not None
    assert masks.rows == [1, 3]
    assert masks.bias.shape == (2, VOCAB_SIZE)
    logits = torch.randn(4, VOCAB_SIZE)
    applied = masks.apply(logits)
    assert torch.equal(applied[[0, 2]], logits[[0, 2]])
    assert applied.isfinite().sum(dim=-1).tolist() == [VOCAB_SIZE, 1, VOCAB_SIZE, 1]


def test_a_request_has_one_matcher_until_it_is_forgotten(constraints: Constraints, source: Source) -> None:
    for answer in (b"", b"a", b"aa"):
        allowed(constraints, step(answer, pattern="a+"))
    assert source.num_made == 1
    constraints.forget([RequestId("r"), RequestId("unknown")])
    assert allowed(constraints, step(b"aa", pattern="a+")) == b"a\0"
    assert source.num_made == 2


def test_a_preempted_answer_is_replayed_and_a_different_one_starts_anew(
    constraints: Constraints, source: Source
) -> None:
    pattern = "(ab|cd)+"
    for answer, expected in ((b"ab", b"ac\0"), (b"ab", b"ac\0"), (b"abc", b"d"), (b"a", b"b"), (b"cdab", b"ac\0")):
        assert sorted(allowed(constraints, step(answer, pattern=pattern))) == sorted(expected)
    assert source.num_made == 1
    constraints.forget([RequestId("r")])
    assert allowed(constraints, step(b"cdabc", pattern=pattern)) == b"d"


def test_an_answer_that_the_grammar_does_not_know_fails_alone(
    constraints: Constraints, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    sequences = [step(b"x", pattern="a+", request="wrong"), step(b"a", pattern="a+", request="right")]
    with caplog.at_level(logging.WARNING):
        masks = constraints.masks(sequences)
        assert masks is not None
        assert masks.failed == set()  # nothing was asked for yet
        assert (masks.bias == 0).sum(dim=-1).tolist() == [VOCAB_SIZE, 2]
    assert masks.failed == {"wrong"}
    assert len(source.discarded) == 1
    assert "wrong" in caplog.text


def test_a_grammar_that_does_not_compile_after_all_fails_its_request(constraints: Constraints) -> None:
    masks = constraints.masks([step(pattern="[")])
    assert masks is not None
    assert not masks.bias.any()
    assert masks.failed == {"r"}
    none = Constraints(None, VOCAB_SIZE, CPU).masks([step(pattern="a")])
    assert none is not None
    assert not none.bias.any()
    assert none.failed == {"r"}


def test_a_grammar_whose_masks_are_slow_ends_its_request(source: Source) -> None:
    ticks = itertools.count(step=0.3)  # two readings a mask
    constraints = Constraints(source, VOCAB_SIZE, CPU, clock=lambda: next(ticks))
    failed = []
    for length in range(6):
        masks = constraints.masks([step(b"a" * length, pattern="a+")])
        assert masks is not None
        assert (masks.bias == 0).any()
        failed.append(bool(masks.failed))
    assert failed == [False, False, False, True, False, False]


def test_a_vocabulary_larger_than_the_logits_is_cut(source: Source) -> None:
    constraints = Constraints(source, ord("c"), CPU)  # the model has no logit for "c"
    masks = constraints.masks([step(pattern="[abcd]")])
    assert masks is not None
    assert (masks.bias[0] == 0).nonzero()[:, 0].tolist() == [ord("a"), ord("b")]
    nothing = constraints.masks([step(pattern="[cd]", request="other")])
    assert nothing is not None
    assert not nothing.bias.any()
    assert nothing.failed == {"other"}


SETTINGS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, logit_bias=((ord("z"), 100.0), (ord("b"), 3.0))),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(temperature=2.0, seed=2, top_k=50),
    SamplingParams(temperature=1.0, seed=3, top_p=0.5),
    SamplingParams(temperature=1.0, seed=4, min_p=0.1, top_k=1000),
    SamplingParams(temperature=1.0, seed=5, frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.3),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_whatever_the_settings_only_what_is_allowed_is_chosen(
    constraints: Constraints, sampling: SamplingParams
) -> None:
    sampler = Sampler(VOCAB_SIZE, CPU)
    torch.manual_seed(0)
    answer = b""
    for _ in range(30):
        sequence = step(answer, pattern="[abc]{30}", sampling=sampling)
        [token] = sampler.sample(torch.randn(1, VOCAB_SIZE) * 5, [sequence], constraints.masks([sequence]))
        answer += bytes([token.token_id])
    assert set(answer) <= set(b"abc")
    assert len(set(answer)) > 1
    sequence = step(answer, pattern="[abc]{30}", sampling=sampling)
    [end] = sampler.sample(torch.randn(1, VOCAB_SIZE), [sequence], constraints.masks([sequence]))
    assert end.token_id == EOS


def test_a_seed_draws_the_same_beside_any_row_and_what_is_left_of_the_distribution_decides(
    constraints: Constraints,
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, VOCAB_SIZE)
    expected = torch.softmax(logits[0, list(b"abc")].double(), dim=-1)
    counts = dict.fromkeys(b"abc", 0)
    sampler = Sampler(VOCAB_SIZE, CPU)
    for seed in range(240):
        sampling = SamplingParams(temperature=1.0, seed=seed, top_k=200 if seed % 2 else 0)
        alone = step(pattern="[abc]", sampling=sampling)
        [token] = sampler.sample(logits, [alone], constraints.masks([alone]))
        counts[token.token_id] += 1
        if seed < 10:
            beside = [step(sampling=sampling, request="free"), alone]
            assert sampler.sample(logits.expand(2, -1), beside, constraints.masks(beside))[1] == token
    assert [count / 240 for count in counts.values()] == pytest.approx(expected.tolist(), abs=0.1)


def test_logprobs_are_the_models_own_whatever_is_allowed(constraints: Constraints) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, VOCAB_SIZE)
    logits[0, ord("z")] = 9.0
    sequence = step(pattern="[abc]", sampling=SamplingParams(temperature=0, num_top_logprobs=1))
    [token] = Sampler(VOCAB_SIZE, CPU).sample(logits, [sequence], constraints.masks([sequence]))
    expected = torch.log_softmax(logits[0], dim=-1)
    assert token.logprob == pytest.approx(float(expected[token.token_id]), abs=1e-5)
    assert token.token_id in b"abc"
    assert token.top[0][0] == ord("z")


def test_where_the_model_takes_all_that_is_allowed_as_impossible_one_of_it_is_drawn(constraints: Constraints) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, list(b"abc")] = float("-inf")
    for sampling in SETTINGS:
        sequence = step(pattern="[abc]", sampling=sampling)
        [token] = Sampler(VOCAB_SIZE, CPU).sample(logits, [sequence], constraints.masks([sequence]))
        assert token.token_id in b"abc"


def test_few_allowed_tokens_do_not_make_a_wide_top_k_sort_the_vocabulary(
    constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counting(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        counts.append(count)
        return top(logits, count)

    monkeypatch.setattr("pagefall.model.truncation.top", counting)
    sequence = step(pattern="[abc]", sampling=SamplingParams(temperature=1.0, seed=1, top_k=40))
    Sampler(VOCAB_SIZE, CPU).sample(torch.randn(1, VOCAB_SIZE), [sequence], constraints.masks([sequence]))
    assert counts == [NUM_CANDIDATES[0]]


def test_in_bfloat16_the_likeliest_of_the_allowed_tokens_is_the_likeliest_in_float32(
    constraints: Constraints, tmp_path: Path
) -> None:
    folder = make_tiny("llama", tmp_path, vocab_size=VOCAB_SIZE, num_layers=1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    forward = FusedForward(model, [None], script("off"), keeps_plain_weights=False)
    torch.manual_seed(0)
    head = model.lm_head.weight.detach().float()
    # Far below what is not allowed, and close together: rounded, they are ties.
    letters = list(b"abcdefgh")
    head[letters] = head[letters[0]] + torch.randn(len(letters), head.shape[1]) * 1e-3
    forward._head_weight = head.bfloat16()
    differs = 0
    for _ in range(20):
        hidden = torch.randn(4, head.shape[1]).bfloat16()
        rounded = hidden @ forward._head_weight.T
        sequences = [step(), step(pattern="[a-h]")]
        masks = constraints.masks(sequences)
        logits = forward._sharpened(rounded, hidden, masks)
        chosen = Sampler(VOCAB_SIZE, CPU).sample(logits[:2], sequences, masks)
        exact = hidden.float() @ forward._head_weight.float().T
        assert chosen[0].token_id == int(exact[0].argmax())
        assert exact[1, chosen[1].token_id] == pytest.approx(float(exact[1, letters].max()), rel=1e-6)
        differs += int(rounded[1, letters].argmax()) != int(exact[1, letters].argmax())
    assert differs > 0  # rounded logits would have chosen others
