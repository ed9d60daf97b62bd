"""`pagefall serve` over a fake model, as a process of its own: `python -m tests.fake_server PORT GRACE [crash]
[request-log=FILE]`."""

from __future__ import annotations

import sys
import time
from typing import Final, cast

import torch
from tests.byte_tokenizer import EOS, byte_tokenizer
from tests.fake_model import FakeModel

from pagefall import app
from pagefall.config import HttpConfig, InsightConfig, ServeConfig
from pagefall.messages import StepPlan, StepResult
from pagefall.model.engine import ModelInfo, PagedModel
from pagefall.model.location import ModelLocation
from pagefall.model.memory import PoolSize
from pagefall.model.spec import ModelSpec

NUM_PAGES: Final = 64
PAGE_SIZE: Final = 16
STEP_SECONDS: Final = 0.02


class FakePagedModel(FakeModel):
    """Takes its time for a step; with `crash`, the fifth step fails."""

    def __init__(self, *, crash: bool) -> None:
        super().__init__(num_pages=NUM_PAGES, page_size=PAGE_SIZE)
        self._crash = crash
        num_tokens = NUM_PAGES * PAGE_SIZE
        spec = ModelSpec(
            location=ModelLocation(path="nowhere"),
            served_name="fake",
            architecture="FakeForCausalLM",
            model_type="fake",
            layers=(),
            sliding_window=(),
            num_attention_heads=1,
            vocab_size=EOS + 1,
            context_length=num_tokens,
            eos_token_ids=frozenset([EOS]),
            weights_bytes=0,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        pool = PoolSize(num_pages=NUM_PAGES, num_tokens=num_tokens, num_bytes=0, context_length=num_tokens)
        self.info = ModelInfo(
            spec=spec, pool=pool, page_size=PAGE_SIZE, context_length=num_tokens, kv_bytes_per_token=0
        )

    def step(self, plan: StepPlan) -> StepResult:
        if self._crash and plan.step == 5:
            raise ArithmeticError("bad luck")
        time.sleep(STEP_SECONDS)
        return super().step(plan)


def load_fake(config: ServeConfig, spec: ModelSpec) -> app._Loaded:
    """Whatever model was asked for."""
    model = cast("PagedModel", FakePagedModel(crash="crash" in sys.argv))
    return app._Loaded(model, byte_tokenizer(), grammars=None, host=None, namespace=None)


if __name__ == "__main__":
    port, grace = int(sys.argv[1]), float(sys.argv[2])
    app._load = load_fake
    logs = [word.removeprefix("request-log=") for word in sys.argv if word.startswith("request-log=")]
    sys.exit(
        app.serve(
            ServeConfig(
                http=HttpConfig(port=port, shutdown_grace_seconds=grace),
                insight=InsightConfig(request_log=logs[0] if logs else None),
            )
        )
    )
