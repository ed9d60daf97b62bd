from __future__ import annotations

import msgspec

from pagefall.bench.load.comparison import Compared
from pagefall.bench.load.config import LoadConfig, TrafficConfig, WorkloadConfig
from pagefall.bench.load.plan import make_plan
from pagefall.bench.load.report import comparison_text, heading, summary_text
from pagefall.bench.load.samples import LoopLag
from pagefall.bench.load.slo import Slo
from pagefall.bench.load.summary import summarise

from .samples import failed_sample, run, sample


def test_the_heading_says_what_was_sent_to_whom() -> None:
    plan = make_plan(LoadConfig(workload=WorkloadConfig(preset="lmcache-long-doc-qa", scale=0.5, output_tokens=4)))
    target, preset, workload, load = heading(plan, {"self": "m at http://x"}, seed=7, repeats=2).splitlines()
    assert target == "self: m at http://x"
    assert preset.startswith("preset lmcache-long-doc-qa (LMCache's benchmarks/long_doc_qa, its defaults")
    sizes = "documents 4, questions 3, document tokens 10000, question tokens 0, output tokens 4, length spread 0"
    assert workload == f"long-doc: {sizes}; scale 0.5"
    assert load == "closed loop, 1 at a time; seed 7, 2 repeats"


def test_an_open_loop_says_its_rate() -> None:
    traffic = TrafficConfig(request_rate=2.5, burstiness=0.5, max_concurrency=9)
    plan = make_plan(LoadConfig(workload=WorkloadConfig(workload="random"), traffic=traffic))
    last = heading(plan, {}, seed=0, repeats=1).splitlines()[-1]
    assert last == "open loop, 2.5 requests a second (burstiness 0.5), at most 9 at a time; seed 0, 1 repeat"


def test_a_summary_in_full() -> None:
    tiers = {"device": 48, "host": 16}
    measured = run(
        sample(due_at=0.75, cached_tokens_by_tier=tiers),
        sample(part="first", cached_tokens=0, num_seen_tokens=0),
        failed_sample(),
    )
    lag = LoopLag(p50_seconds=0.0001, p99_seconds=0.0065, max_seconds=0.02)
    measured = msgspec.structs.replace(measured, lag=lag, note="given up")
    text = summary_text("self", summarise([measured], Slo(ttft=0.3)), [measured])
    assert (
        text
        == """\
self            mean  p50  p90  p99  max  unit
TTFT             200  200  200  200  200    ms
ITL              100  100  100  100  100    ms
time per token   100  100  100  100  100    ms
end to end       400  400  400  400  400    ms
sent late        250  250  250  250  250    ms

requests    2 answered, 1 failed, in 2.0 s
throughput  1.00 req/s, 100 prompt tok/s, 3.00 output tok/s
hit rate    32.0% of 200 prompt tokens, 40.0% possible; device 24.0%, host 8.0%, storage 0.0%
goodput     0.500 req/s, 33.3% of requests kept the SLO
held back   1 request sent more than 10 ms after their time
client      own loop late by 0.1 ms p50, 6.5 p99, 20.0 max; too busy to be exact
failures    1 status 503: status 503: too many requests
cut short   given up

part   requests  TTFT mean  p50  p90  hit rate  possible  device   host  storage
later         2        200  200  200     64.0%     80.0%   48.0%  16.0%     0.0%
first         1        200  200  200      0.0%      0.0%    0.0%   0.0%     0.0%
"""
    )


def test_a_server_that_tells_nothing_gets_no_zeros() -> None:
    silent = run(sample(cached_tokens=None, num_output_tokens=6))
    text = summary_text("self", summarise([silent], None), [silent])
    assert "hit rate    n/a: the server does not say how many tokens were cached; 80.0% possible" in text
    assert "events      2.00 tokens each: ITL is between events, not tokens" in text
    assert text.splitlines()[-1].split()[-2:] == ["n/a", "80.0%"]


def test_the_comparison_has_the_ratio_and_its_spread() -> None:
    figures = [
        Compared(name="TTFT mean", unit="s", own=0.1, peer=0.2, ratio=0.5, low=0.4, high=0.55),
        Compared(name="hit rate", unit="share", own=0.5, peer=None),
    ]
    assert (
        comparison_text(figures, "self", "peer")
        == """\
           self  peer  self/peer  least  most  unit
TTFT mean   100   200       0.50   0.40  0.55    ms
hit rate   50.0   n/a          -      -     -     %
"""
    )
