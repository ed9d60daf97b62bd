"""The sampler against a plain reference, `transformers`' processors, and its own promises."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from pagefall.messages import RequestId, SamplingParams, SequenceStep
from pagefall.model.sampling import Sampler
from pagefall.model.top_logits import argmax, top
from pagefall.model.truncation import NUM_CANDIDATES
from pagefall.model.uniforms import philox, uniforms

CPU = torch.device("cpu")


def step(
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (1, 2, 3),
    answer: Sequence[int] = (),
    request_id: str = "r",
) -> SequenceStep:
    return SequenceStep(
        request_id=RequestId(request_id),
        token_ids=np.array([*prompt, *answer], dtype=np.uint32),
        start=0,
        page_ids=np.zeros(1, dtype=np.int32),
        num_prompt_tokens=len(prompt),
        sampling=params,
    )


def sample_one(logits: Sequence[float] | torch.Tensor, params: SamplingParams, *, answer: Sequence[int] = ()) -> int:
    row = torch.as_tensor(logits, dtype=torch.float32)[None]
    return Sampler(row.shape[1], CPU).sample(row, [step(params, answer=answer)])[0].token_id


def random_logits(num_rows: int, vocab_size: int, *, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def draws(logits: torch.Tensor, params: SamplingParams, count: int) -> list[int]:
    """`count` draws from one row, each for a seed of its own."""
    vocab_size = logits.shape[-1]
    sampler = Sampler(vocab_size, CPU)
    steps = [
        step(SamplingParams(**{name: getattr(params, name) for name in params.__struct_fields__} | {"seed": seed}))
        for seed in range(count)
    ]
    return [token.token_id for token in sampler.sample(logits.expand(count, vocab_size), steps)]


def expected_head(
    logits: npt.NDArray[np.float64], top_k: int, top_p: float, min_p: float
) -> tuple[list[int], npt.NDArray[np.float64]]:
    """The definition, read aloud: token ids of the head and their probabilities among themselves."""
    order = sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    if top_k:
        order = order[:top_k]
    probabilities = probabilities / probabilities[order].sum()
    if top_p < 1:
        cumulated, kept = 0.0, list[int]()
        for token_id in order:
            if kept and cumulated >= top_p:
                break
            kept.append(token_id)
            cumulated += probabilities[token_id]
        order = kept
    order = [token_id for token_id in order if probabilities[token_id] >= min_p * probabilities[order[0]]] or order[:1]
    return order, probabilities[order] / probabilities[order].sum()


def chi_square(observed: Sequence[int], probabilities: npt.NDArray[np.float64]) -> float:
    """The statistic, in standard deviations above its mean (for many cells it is close to normal)."""
    counts = np.bincount(observed, minlength=len(probabilities))
    expected = probabilities * len(observed)
    degrees = len(probabilities) - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFF, 0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(counter: int, key: int, words: tuple[int, ...]) -> None:
    one = np.array([counter], dtype=np.uint32)
    two = np.array([key], dtype=np.uint32)
    assert tuple(int(word[0]) for word in philox((one, one, one, one), (two, two))) == words


def test_uniform_numbers_are_uniform_over_seeds_and_over_positions() -> None:
    count = 20_000
    many = np.arange(count, dtype=np.uint64)
    for numbers in (
        uniforms(many, np.zeros(count, dtype=np.uint32)),
        uniforms(np.zeros(count, dtype=np.uint64), many.astype(np.uint32)),
    ):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert abs(chi_square((numbers * 100).astype(int).tolist(), np.full(100, 0.01))) < 4
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


@pytest.mark.parametrize("vocab_size", [1, 17, 64, 65, 1000, 9001])
def test_argmax_and_top_agree_with_a_stable_sort_when_values_repeat(vocab_size: int) -> None:
    logits = random_logits(4, vocab_size).round()
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(argmax(logits), ids[:, 0])
    count = min(50, vocab_size)
    top_values, top_ids = top(logits, count)
    assert torch.equal(top_values, values[:, :count])
    above = values[:, :count] > values[:, count - 1 : count]
    assert torch.equal(top_ids[above], ids[:, :count][above])


def test_top_gives_valid_ids_when_almost_every_logit_is_minus_infinity() -> None:
    logits = torch.full((1, 9001), float("-inf"))
    logits[0, [5, 9000]] = torch.tensor([1.0, 2.0])
    values, ids = top(logits, 20)
    assert ids[0, :2].tolist() == [9000, 5]
    assert int(ids.max()) <= 9000
    assert values[0, 2:].isinf().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_first_of_the_largest(dtype: torch.dtype) -> None:
    logits = random_logits(8, 3000).to(dtype)
    logits[0, [70, 900]] = 100
    sampled = Sampler(3000, CPU).sample(logits, [step(SamplingParams(temperature=0)) for _ in range(8)])
    assert [token.token_id for token in sampled] == logits.float().argmax(dim=-1).tolist()
    assert sampled[0].token_id == 70


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-6, 1e-5])
def test_the_least_temperatures_are_greedy_and_finite(temperature: float) -> None:
    logits = random_logits(1, 500)[0]
    assert sample_one(logits, SamplingParams(temperature=temperature, seed=1)) == int(logits.argmax())


def test_a_huge_temperature_is_uniform() -> None:
    observed = draws(random_logits(1, 20)[0], SamplingParams(temperature=1e30), 4000)
    assert chi_square(observed, np.full(20, 0.05)) < 4


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_plain_draws_follow_the_softmax(temperature: float) -> None:
    logits = random_logits(1, 600, scale=1.0)[0]
    probabilities = torch.softmax(logits.double() / temperature, dim=-1).numpy()
    assert chi_square(draws(logits, SamplingParams(temperature=temperature), 20_000), probabilities) < 4


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=10),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(top_k=40, top_p=0.9, min_p=0.05, temperature=1.3),
    ],
)
def test_truncated_draws_follow_the_renormalised_head(params: SamplingParams) -> None:
    logits = random_logits(1, 600, scale=1.5)[0]
    head, probabilities = expected_head(
        logits.double().numpy() / params.temperature, params.top_k, params.top_p, params.min_p
    )
    observed = draws(logits, params, 20_000)
    assert set(observed) <= set(head)
    assert chi_square([head.index(token_id) for token_id in observed], probabilities) < 4


@settings(max_examples=150, deadline=None)
@given(
    data=st.integers(0, 2**32 - 1),
    vocab_size=st.sampled_from([1, 2, 50, 257, 5000]),
    scale=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    is_rounded=st.booleans(),
    top_k=st.sampled_from([0, 1, 2, 255, 256, 257, 4097, 10**9]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.1, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_a_truncated_draw_is_the_inverse_of_the_reference_distribution(
    data: int, vocab_size: int, scale: float, *, is_rounded: bool, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    logits = random_logits(1, vocab_size, seed=data, scale=scale)[0]
    if is_rounded:  # many equal values, as bfloat16 makes them
        logits = logits.round()
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    token_id = sample_one(logits, params)
    if (top_k == 0 or top_k >= vocab_size) and top_p == 1 and min_p == 0:  # nothing is cut: tokens stand by id
        head, probabilities = list(range(vocab_size)), torch.softmax(logits.double(), dim=-1).numpy()
    else:
        # A threshold within rounding of a probability may fall on either side of it.
        heads = [
            expected_head(logits.double().numpy(), top_k, top_p * (1 + slack), min_p * (1 - slack))
            for slack in (-1e-5, 0, 1e-5)
        ]
        head, probabilities = max(heads, key=lambda pair: len(pair[0]))
        if len({len(head) for head, _ in heads}) > 1:
            assert token_id in head
            return
    assert token_id in head
    uniform = uniforms(np.array([seed % 2**64], dtype=np.uint64), np.zeros(1, dtype=np.uint32))[0]
    place = head.index(token_id)
    upper = probabilities[: place + 1].sum()
    assert upper - probabilities[place] - 1e-5 <= uniform <= upper + 1e-5


@pytest.mark.parametrize("count", NUM_CANDIDATES)
def test_heads_longer_than_the_candidates_are_found_whole(count: int) -> None:
    vocab_size = 3 * count
    observed = draws(torch.zeros(vocab_size), SamplingParams(top_p=0.7), 300)
    assert count < max(observed) < math.ceil(0.7 * vocab_size)


def test_top_p_counts_the_mass_of_a_top_k_longer_than_the_candidates() -> None:
    falling = torch.linspace(0, -0.01, 1000)
    observed = draws(falling, SamplingParams(top_k=600, top_p=0.4), 2000)
    assert 230 < max(observed) < 241


def test_min_p_of_one_keeps_what_is_as_likely_as_the_first() -> None:
    assert set(draws(torch.tensor([1.0, 0.9, 1.0]), SamplingParams(min_p=1.0), 50)) == {0, 2}


MIXED = [
    SamplingParams(temperature=0),
    SamplingParams(seed=1),
    SamplingParams(seed=2, top_k=20, temperature=0.8),
    SamplingParams(seed=3, top_p=0.9, repetition_penalty=1.3),
    SamplingParams(seed=4, min_p=0.02, logit_bias=((5, 4.0),), num_top_logprobs=3),
    SamplingParams(seed=5, frequency_penalty=0.5, presence_penalty=-0.5, top_p=0.99, temperature=1.5),
]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = random_logits(60, 5000)
    steps = [
        step(MIXED[row % len(MIXED)], prompt=range(row + 1), answer=range(row), request_id=str(row))
        for row in range(60)
    ]
    together = Sampler(5000, CPU).sample(logits, steps)
    alone = [Sampler(5000, CPU).sample(logits[row : row + 1], [steps[row]])[0] for row in range(60)]
    backwards = Sampler(5000, CPU).sample(logits.flip(0), steps[::-1])[::-1]
    assert [token.token_id for token in together] == [token.token_id for token in alone]
    assert [token.token_id for token in together] == [token.token_id for token in backwards]


def test_a_seeded_request_repeats_itself_and_moves_on_with_its_answer() -> None:
    logits = random_logits(1, 1000, scale=0.5)
    params = SamplingParams(seed=42)

    def answer() -> list[int]:
        sampler, token_ids = Sampler(1000, CPU), list[int]()
        for _ in range(8):
            token_ids.append(sampler.sample(logits, [step(params, answer=token_ids)])[0].token_id)
        return token_ids

    assert answer() == answer()
    assert len(set(answer())) > 4


def test_a_request_without_a_seed_keeps_its_own_until_forgotten() -> None:
    logits = random_logits(1, 100_000, scale=0.1)
    sampler = Sampler(100_000, CPU)
    steps = [step(SamplingParams(), request_id="a"), step(SamplingParams(), request_id="b")]
    first, other = (token.token_id for token in sampler.sample(logits.expand(2, -1), steps))
    assert first != other
    assert sampler.sample(logits, steps[:1])[0].token_id == first
    sampler.forget([RequestId("a"), RequestId("never seen")])
    assert sampler.sample(logits, steps[:1])[0].token_id != first


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    logits = random_logits(1, 300)
    prompt, answer = [5, 7, 7, 200], [9, 5, int(logits.argmax())]
    processor = RepetitionPenaltyLogitsProcessor(penalty=penalty)
    expected = processor(torch.tensor([[*prompt, *answer]]), logits.clone())  # type: ignore[no-untyped-call, unused-ignore]
    sampler = Sampler(300, CPU)
    sequence = step(
        SamplingParams(temperature=0, repetition_penalty=penalty, logit_bias=()), prompt=prompt, answer=answer
    )
    for _ in range(5):
        token_id = sampler.sample(logits, [sequence])[0].token_id
        assert token_id == int(expected.argmax())
        logits[0, token_id] = expected[0, token_id] = -50


def test_presence_and_frequency_penalties_count_the_answer_alone() -> None:
    logits = [0.0, 3.0, 2.9, 0.0, 0.0]

    def greedy(answer: Sequence[int], *, presence: float = 0.0, frequency: float = 0.0) -> int:
        params = SamplingParams(temperature=0, presence_penalty=presence, frequency_penalty=frequency)
        return sample_one(logits, params, answer=answer)

    assert greedy([], presence=2.0, frequency=2.0) == 1  # token 1 stands in the prompt
    assert greedy([1], presence=0.2) == 2
    assert greedy([1], presence=0.05) == 1
    assert greedy([1, 1, 1], presence=0.05) == 1
    assert greedy([1, 1, 1], frequency=0.05) == 2
    assert greedy([1], frequency=0.05) == 1
    assert greedy([2, 2], presence=-1.0) == 2


def test_penalties_follow_a_growing_a_preempted_and_a_different_history() -> None:
    logits = random_logits(1, 50, scale=0.3)
    params = SamplingParams(temperature=0, frequency_penalty=1.0, repetition_penalty=1.2)
    kept = Sampler(50, CPU)
    for answer in ([], [4], [4, 4, 9], [4, 4, 9, 1], [4, 4], [7, 7, 7]):
        fresh = Sampler(50, CPU).sample(logits, [step(params, answer=answer)])
        assert kept.sample(logits, [step(params, answer=answer)]) == fresh


def test_logit_bias_adds_and_forbids() -> None:
    logits = [0.0, 5.0, 4.0, 0.0]
    assert sample_one(logits, SamplingParams(temperature=0, logit_bias=((2, 1.5),))) == 2
    assert sample_one(logits, SamplingParams(temperature=0, logit_bias=((1, -100.0), (2, -100.0), (3, 1.0)))) == 3


def test_logprobs_are_the_models_own_before_penalties_and_temperature() -> None:
    logits = random_logits(2, 400).bfloat16()
    params = SamplingParams(temperature=0.1, seed=1, num_top_logprobs=4, repetition_penalty=1.5, logit_bias=((3, 9.0),))
    asked, unasked = Sampler(400, CPU).sample(logits, [step(params), step(SamplingParams(temperature=0))])
    expected = torch.log_softmax(logits[0].double(), dim=-1)
    assert asked.logprob == pytest.approx(float(expected[asked.token_id]), abs=1e-5)
    values, ids = expected.sort(descending=True, stable=True)
    assert [token_id for token_id, _ in asked.top] == ids[:4].tolist()
    assert [logprob for _, logprob in asked.top] == pytest.approx(values[:4].tolist(), abs=1e-5)
    assert (unasked.logprob, unasked.top) == (0.0, ())


def test_zero_top_logprobs_gives_the_chosen_token_alone_and_more_than_the_vocabulary_all() -> None:
    logits = random_logits(2, 3)
    none, every = Sampler(3, CPU).sample(
        logits, [step(SamplingParams(temperature=0, num_top_logprobs=count)) for count in (0, 20)]
    )
    assert none.logprob < 0
    assert none.top == ()
    assert len(every.top) == 3


def test_logits_that_are_not_finite_never_crash_and_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[nan, 1.0, 0.0], [nan, nan, nan], [-inf, -inf, -inf], [0.0, inf, -inf]])
    sampler = Sampler(3, CPU)
    with caplog.at_level(logging.ERROR):
        for params in (SamplingParams(temperature=0), SamplingParams(seed=3), SamplingParams(seed=3, top_p=0.5)):
            sampled = sampler.sample(logits, [step(params) for _ in range(4)])
            assert sampled[0].token_id in (1, 2)
            assert all(0 <= token.token_id < 3 for token in sampled)
            assert sampled[3].token_id == 1
    assert len(caplog.records) == 1


def test_sampling_leaves_the_logits_as_they_were() -> None:
    logits = random_logits(len(MIXED), 400)
    before = logits.clone()
    Sampler(400, CPU).sample(logits, [step(params) for params in MIXED])
    assert torch.equal(logits, before)


def test_a_step_without_sequences_samples_nothing() -> None:
    assert Sampler(10, CPU).sample(torch.empty(0, 10), []) == ()
