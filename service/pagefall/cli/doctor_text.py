"""A diagnosis for people: a verdict, then the losses, each with what to do."""

from __future__ import annotations

import textwrap
from typing import Final

from pagefall.insight.diagnosis.losses import HEADLINES
from pagefall.insight.diagnosis.report import Diagnosis, Loss, TierGain

_WIDTH: Final = 100


def render(diagnosis: Diagnosis) -> str:
    """Ends with a line end."""
    lines = [*textwrap.wrap(diagnosis.verdict, _WIDTH), "", _traffic(diagnosis)]
    if diagnosis.num_requests:
        lines += ["", *_rates(diagnosis)]
    for rank, loss in enumerate(diagnosis.losses, 1):
        lines += ["", *_loss(rank, loss, diagnosis.num_prompt_tokens)]
    if any(gain.num_extra_tokens or gain.num_nearer_tokens for gain in diagnosis.tiers):
        lines += ["", "Twice the size would bring, by reuse distance:", *map(_gain, diagnosis.tiers)]
    return "\n".join(lines) + "\n"


def _traffic(diagnosis: Diagnosis) -> str:
    span = "" if not diagnosis.seconds else f" in {_duration(diagnosis.seconds)}"
    earlier = (
        f"; requests before these, with {diagnosis.num_earlier_tokens:,} tokens, were not looked at"
        if diagnosis.num_earlier_tokens
        else ""
    )
    age = f"; as of {_duration(diagnosis.age_seconds)} ago" if diagnosis.age_seconds else ""
    return (
        f"{diagnosis.num_requests:,} requests with {diagnosis.num_prompt_tokens:,} prompt tokens{span}, "
        f"pages of {diagnosis.page_size}{earlier}{age}"
    )


def _rates(diagnosis: Diagnosis) -> list[str]:
    how = "as counted by the server" if diagnosis.is_measured else "by replay: an LRU of the given size"
    rows = [("hit rate", diagnosis.hit_rate, how)]
    rows += [
        ("ceiling", diagnosis.ceiling, "what an infinite cache would have given"),
        ("attainable", diagnosis.attainable, "the ceiling, once the prompts are mended"),
    ]
    return [f"  {name:<10}  {value:>6.1%}  {text}" for name, value, text in rows if value is not None]


def _loss(rank: int, loss: Loss, num_prompt_tokens: int) -> list[str]:
    share = loss.num_tokens / max(1, num_prompt_tokens)
    seconds = "" if loss.seconds is None else f", about {_duration(loss.seconds)} of computing"
    how = "counted" if loss.is_measured else "estimated"
    headline = HEADLINES[loss.cause]
    lines = [
        f"{rank}. {headline[0].upper()}{headline[1:]}",
        f"   {loss.num_tokens:,} tokens, {share:.1%} of all{seconds} ({how})",
    ]
    lines += _indented(f"{loss.evidence.text[0].upper()}{loss.evidence.text[1:]}.")
    lines += [f"     {example!r}" for example in loss.evidence.examples]
    return [*lines, *_indented(f"What to do: {loss.advice}")]


def _gain(gain: TierGain) -> str:
    return (
        f"  {gain.tier:<8} {gain.num_pages:>10,} pages now  {gain.num_extra_tokens:>12,} tokens more"
        f"  {gain.num_nearer_tokens:>12,} from nearer"
    )


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="   ", subsequent_indent="   ", break_on_hyphens=False)


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
