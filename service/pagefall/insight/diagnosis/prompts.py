"""What prompts themselves prevent: each cause is taken away, and the traffic replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagefall.insight.diagnosis import history, json_order, volatile, whitespace
from pagefall.insight.diagnosis.losses import loss
from pagefall.insight.diagnosis.observations import Observation, is_token_text, sections, shown_tokens
from pagefall.insight.diagnosis.patterns import form_of
from pagefall.insight.diagnosis.replay import Mend, Sections, TextReplay, mended
from pagefall.insight.diagnosis.report import Cause, Evidence, Loss, Place

_MAX_EXAMPLES = 3
_LONGEST_EXAMPLE = 120


class Prevented(NamedTuple):
    """`num_tokens`: what mending all of it would add to the ceiling."""

    losses: list[Loss]
    num_tokens: int


class _Suspect(NamedTuple):
    cause: Cause
    evidence: Evidence
    advice: str | None
    others: tuple[Mend, ...]
    """What mends everything but this."""


def prevented_reuse(
    observations: Sequence[Observation],
    *,
    page_size: int,
    seconds_per_token: float | None,
    least_tokens: float,
    show_text: bool,
) -> Prevented:
    """Losses of `least_tokens` and more. With `show_text` false there is no text of a prompt in them."""
    prompts = [sections(observation) for observation in observations]
    replay = TextReplay(observations, prompts, page_size)
    suspects, mends = _suspects(prompts, show_text=show_text)
    best = replay.num_usable_with(mended(prompts, mends)) if mends else replay.num_usable
    losses = []
    for suspect in suspects:
        without = replay.num_usable_with(mended(prompts, suspect.others)) if suspect.others else replay.num_usable
        gains = np.maximum(best - without, 0)
        num_tokens, num_prompts = float(gains.sum()), int((gains > 0).sum())
        # A page or so a prompt is where pages happen to end, not what stands in the way.
        if num_tokens < least_tokens or num_tokens < 2 * page_size * num_prompts:
            continue
        losses.append(
            loss(
                suspect.cause,
                num_tokens,
                suspect.evidence,
                seconds_per_token=seconds_per_token,
                advice=suspect.advice,
            )
        )
    if not losses:
        prompts_then, usable_then = prompts, replay.num_usable
    else:
        prompts_then, usable_then = mended(prompts, mends), best
    total = float(np.maximum(usable_then - replay.num_usable, 0).sum())
    rewritten = _rewritten(observations, prompts_then, usable_then, replay, show_text=show_text)
    if rewritten is not None and rewritten[0] >= least_tokens:
        num_tokens, evidence = rewritten
        losses.append(loss("rewritten_history", num_tokens, evidence, seconds_per_token=seconds_per_token))
        total += num_tokens
    return Prevented(losses, round(total))


def _suspects(prompts: Sequence[Sections], *, show_text: bool) -> tuple[list[_Suspect], list[Mend]]:
    """What may stand in the way, and what mends all of it, in the order in which it is to be done."""
    ordered, plain = json_order.OrderedTexts(), whitespace.PlainTexts()
    reordering = json_order.find_reordering(prompts)
    before_sites: list[Mend] = [] if reordering is None else [ordered]
    seen = mended(prompts, before_sites)
    drift = whitespace.find_drift(seen, plain)
    differences = volatile.find_differences(seen)
    drift = drift or differences.drift
    if drift is not None:
        before_sites.append(plain)
        differences = volatile.find_differences(mended(seen, [plain]))
    sites = [found.site for found in differences.sites]
    cut_all = [volatile.SiteCutter(sites, frozenset(sites))] if sites else []
    mends: list[Mend] = [*before_sites, *cut_all]
    suspects = [
        _Suspect(
            "volatile_text",
            _site_evidence(found, prompts, show_text=show_text),
            _site_advice(found, prompts),
            (*before_sites, volatile.SiteCutter(sites, frozenset(sites) - {found.site})),
        )
        for found in differences.sites
    ]
    if drift is not None:
        without = tuple(mend for mend in mends if mend is not plain)
        suspects.append(_Suspect("whitespace", _drift_evidence(drift, show_text=show_text), None, without))
    if reordering is not None:
        without = tuple(mend for mend in mends if mend is not ordered)
        suspects.append(_Suspect("json_order", _order_evidence(reordering, show_text=show_text), None, without))
    return suspects, mends


def _site_evidence(found: volatile.FoundSite, prompts: Sequence[Sections], *, show_text: bool) -> Evidence:
    site, values = found.site, volatile.counted_values(found)
    number = min(found.values)
    offset = _offset_as_sent(found, number, prompts)
    num_prompts = len(found.values)
    if is_token_text("".join(values) + site.after):
        return Evidence(
            text=f"tokens from {offset} on vary: {len(values):,} variants in {num_prompts:,} prompts that are alike",
            place=Place(token_index=offset),
            examples=tuple(map(shown_tokens, values[:_MAX_EXAMPLES])) if show_text else (),
            num_prompts=num_prompts,
        )
    form = form_of(values)
    where = _where(site.message_index, site.role)
    return Evidence(
        text=f"{_article(form)} at character {offset} of {where}: {len(values):,} variants in {num_prompts:,} prompts "
        "that are alike",
        place=Place(message_index=site.message_index, role=site.role, char_offset=offset),
        examples=tuple(value[:_LONGEST_EXAMPLE] for value in values[:_MAX_EXAMPLES]) if show_text else (),
        num_prompts=num_prompts,
    )


def _offset_as_sent(found: volatile.FoundSite, number: int, prompts: Sequence[Sections]) -> int:
    """Sites are sought in mended text; the value itself is looked up in the prompt as it was."""
    site, value = found.site, found.values[number]
    for section in prompts[number]:
        if (section.message_index, section.role) == (site.message_index, site.role):
            offset = found.offsets[number]
            if section.content.startswith(value, offset):
                return offset
            return max(0, section.content.find(value)) if value else offset
    return found.offsets[number]


def _site_advice(found: volatile.FoundSite, prompts: Sequence[Sections]) -> str:
    site = found.site
    if site.role == "tools":
        return "Keep it out of the tools: what the model has to know of the moment belongs into the last user message."
    if site.message_index is None:
        return "Move it to the end of the prompt, behind everything that stays the same."
    has_turns = any(sum(section.role == "user" for section in prompts[number]) > 1 for number in found.values)
    if has_turns:
        return (
            "Move it into the last user message, or leave it out. At the end of the system prompt it would still cost "
            "the conversation behind it."
        )
    return "Move it behind everything that stays the same: into the last user message, at its end."


def _drift_evidence(drift: whitespace.Drift, *, show_text: bool) -> Evidence:
    examples = (whitespace.shown(drift.one, drift.char_offset), whitespace.shown(drift.other, drift.char_offset))
    return Evidence(
        text=f"two versions of one text, which differ from character {drift.char_offset} of "
        f"{_where(drift.message_index, drift.role)} on, in nothing that one sees",
        place=Place(message_index=drift.message_index, role=drift.role, char_offset=drift.char_offset),
        examples=examples if show_text else (),
        num_prompts=2,
    )


def _order_evidence(found: json_order.Reordering, *, show_text: bool) -> Evidence:
    what = "items (tools, for instance)" if found.has_other_items else "keys"
    return Evidence(
        text=f"the same JSON, at character {found.char_offset} of {_where(found.message_index, found.role)}, with its "
        f"{what} in another order",
        place=Place(message_index=found.message_index, role=found.role, char_offset=found.char_offset),
        examples=(found.one[:_LONGEST_EXAMPLE], found.other[:_LONGEST_EXAMPLE]) if show_text else (),
        num_prompts=2,
    )


def _rewritten(
    observations: Sequence[Observation],
    prompts: Sequence[Sections],
    usable: npt.NDArray[np.float64],
    replay: TextReplay,
    *,
    show_text: bool,
) -> tuple[int, Evidence] | None:
    rewrites = history.find_rewrites(observations, prompts)
    if not rewrites:
        return None
    num_tokens = np.array([len(observation.token_ids) for observation in observations], dtype=np.int64)
    lost = history.tokens_lost(rewrites, num_tokens, usable, replay.tokens_per_character)
    by_kind = {kind: [each for each in rewrites if each.kind == kind] for kind in ("dropped", "changed", "inserted")}
    kind, most = max(by_kind.items(), key=lambda item: len(item[1]))
    first = most[0]
    section = next(each for each in prompts[first.prompt] if each.message_index == first.message_index)
    earlier = next((each for each in prompts[first.earlier] if each.message_index == first.message_index), None)
    text = {
        "dropped": f"messages are dropped from the head of conversations, {abs(first.num_moved)} at a time",
        "changed": "an earlier message of a conversation is another one in its next turn",
        "inserted": "messages are put in front of earlier ones",
    }[kind]
    examples = [each.content[:_LONGEST_EXAMPLE] for each in (earlier, section) if each is not None]
    return lost, Evidence(
        text=f"{text}: in {len(rewrites):,} prompts, as of message {first.message_index}",
        place=Place(message_index=first.message_index, role=section.role, char_offset=0),
        examples=tuple(examples) if show_text else (),
        num_prompts=len(rewrites),
    )


def _where(message_index: int | None, role: str | None) -> str:
    if message_index is not None:
        return f"message {message_index} ({role})"
    return "the tools" if role == "tools" else "the prompt"


def _article(form: str) -> str:
    return "a text that varies" if form == "text" else f"a {form}"
