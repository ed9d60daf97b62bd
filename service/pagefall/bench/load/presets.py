"""Shapes of load that others have published, by name."""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from pagefall.bench.load.shapes import GeneratedSharedPrefix, LongDoc, MultiTurn, RandomPrompts, Shape

PresetName = Literal[
    "sglang-generated-shared-prefix",
    "sglang-random",
    "sglang-hicache-multiturn",
    "lmcache-long-doc-qa",
    "lmcache-multi-round-qa",
    "vllm-multi-turn",
]


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A workload at its published size, and the load it is published with. `source` says where the figures are from.

    Either `concurrency` (closed loop) or `request_rate` (open loop, `math.inf`: all at once).
    """

    shape: Shape
    source: str
    concurrency: int | None = None
    request_rate: float | None = None
    max_concurrency: int | None = None
    num_requests: int | None = None


PRESETS: Final[dict[PresetName, Preset]] = {
    "sglang-generated-shared-prefix": Preset(
        shape=GeneratedSharedPrefix(
            groups=64, prompts_per_group=16, system_tokens=2_048, question_tokens=128, output_tokens=256
        ),
        source="sglang.bench_serving --dataset-name generated-shared-prefix, its defaults",
        request_rate=math.inf,
    ),
    "sglang-random": Preset(
        shape=RandomPrompts(input_tokens=512, output_tokens=512, length_spread=1.0),
        source="sglang.bench_serving --dataset-name random, its defaults: 1 to 1,024 tokens in and out",
        request_rate=math.inf,
        num_requests=1_000,
    ),
    "sglang-hicache-multiturn": Preset(
        shape=MultiTurn(users=256, turns=5, first_tokens=512, turn_tokens=512, output_tokens=64, answers="real"),
        source="SGLang's benchmark/hicache/bench_multiturn.py, its defaults and the first of its request rates",
        request_rate=16.0,
        max_concurrency=128,
    ),
    "lmcache-long-doc-qa": Preset(
        shape=LongDoc(documents=8, questions=3, document_tokens=20_000, question_tokens=0, output_tokens=100),
        source="LMCache's benchmarks/long_doc_qa, its defaults: a round to warm up, then every document twice",
        concurrency=2,
    ),
    "lmcache-multi-round-qa": Preset(
        shape=MultiTurn(
            users=10,
            turns=5,
            system_tokens=1_000,
            first_tokens=2_000,
            turn_tokens=20,
            output_tokens=100,
            answers="real",
        ),
        source="LMCache's benchmarks/multi-round-qa, the command of its README",
        request_rate=0.5,
    ),
    "vllm-multi-turn": Preset(
        shape=MultiTurn(
            users=24,
            turns=8,
            system_tokens=500,
            first_tokens=1_140,
            turn_tokens=140,
            output_tokens=100,
            active_users=6,
            length_spread=0.15,
        ),
        source="vLLM's benchmarks/multi_turn: its generate_multi_turn.json at the means of its distributions",
        concurrency=2,
    ),
}
