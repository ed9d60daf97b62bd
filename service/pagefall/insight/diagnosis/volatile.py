"""Short texts that change from prompt to prompt in front of text that does not: where they are, and cut out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from pagefall.insight.diagnosis.alignment import MAX_SPAN, align
from pagefall.insight.diagnosis.observations import Section
from pagefall.insight.diagnosis.patterns import whole_value
from pagefall.insight.diagnosis.relatives import pairs_alike
from pagefall.insight.diagnosis.replay import Sections
from pagefall.insight.diagnosis.whitespace import Drift, drift_between, plain

MAX_SITES: Final = 8
_MAX_PROMPTS: Final = 1_000
"""The last ones, which are compared with those like them."""

_LEAST_SHARE: Final = 0.01
"""Of the prompts compared: what is in fewer of them costs too little to be looked into."""

_ANCHOR: Final = 24
"""Characters behind a site by which it is known."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in prompts of one kind. `before`: the text from the end of `parent`, another site of the same section, or
    from the section's start, up to it; `after`: the text behind it, "" where the section ends.
    """

    message_index: int | None
    role: str | None
    parent: Site | None
    before: str
    after: str

    def end(self, content: str, position: int) -> int | None:
        """Where the value ends in a section that has been read to `position`; None where the site is not there."""
        if not content.startswith(self.before, position):
            return None
        start = position + len(self.before)
        if not self.after:
            return len(content) if len(content) - start <= MAX_SPAN else None
        end = content.find(self.after, start, start + MAX_SPAN + len(self.after))
        return None if end < 0 else end


@dataclass(slots=True)
class FoundSite:
    """`values` by the number of their prompt, `offsets` of the value's first character likewise."""

    site: Site
    values: dict[int, str] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Differences:
    """What prompts that are alike differ in: at most `MAX_SITES` sites, parents first, and white space alone."""

    sites: list[FoundSite]
    drift: Drift | None


def find_differences(prompts: Sequence[Sections]) -> Differences:
    """Compares each prompt with earlier ones like it."""
    search = _Search()
    for earlier, later in pairs_alike(prompts, max_prompts=_MAX_PROMPTS):
        search.compare(prompts[earlier], earlier, prompts[later], later)
    return Differences(search.best(), search.drift)


class SiteCutter:
    """Cuts the values at some of the sites out of prompts."""

    def __init__(self, sites: Sequence[Site], cut: AbstractSet[Site]) -> None:
        """`cut` are those of `sites` whose values go; the others are needed to find these."""
        self._cut = cut
        self._children: dict[Site | tuple[int | None, str | None], list[Site]] = {}
        for site in sites:
            self._children.setdefault(site.parent or (site.message_index, site.role), []).append(site)

    def __call__(self, prompt: Sections) -> Sections:
        changed = tuple(self._without(section) for section in prompt)
        return prompt if all(a is b for a, b in zip(changed, prompt, strict=True)) else changed

    def _without(self, section: Section) -> Section:
        children = self._children.get((section.message_index, section.role))
        parts: list[str] = []
        position = kept = 0
        while children:
            for site in children:
                end = site.end(section.content, position)
                if end is not None:
                    if site in self._cut:
                        parts.append(section.content[kept : position + len(site.before)])
                        kept = end
                    position, children = end, self._children.get(site)
                    break
            else:
                break
        if not kept:
            return section
        return Section(section.role, "".join([*parts, section.content[kept:]]), section.message_index)


class _Search:
    def __init__(self) -> None:
        self.drift: Drift | None = None
        self._compared: set[int] = set()
        self._alike: dict[tuple[int | None, str | None, Site | None, str], list[FoundSite]] = {}

    def compare(self, earlier: Sections, earlier_number: int, later: Sections, later_number: int) -> None:
        """Notes where two prompts differ, from the front, up to the first difference that is no short piece."""
        self._compared |= {earlier_number, later_number}
        for index, (old, new) in enumerate(zip(earlier, later, strict=False)):
            if old.role != new.role:
                return
            if old.content == new.content:
                continue
            is_last = index == len(later) - 1
            if not self._compare_sections(old, earlier_number, new, later_number, is_last=is_last):
                return

    def best(self) -> list[FoundSite]:
        """Those that were seen most often, and what they need to be found."""
        by_site = {found.site: found for alike in self._alike.values() for found in alike}
        by_support = sorted(by_site.values(), key=lambda found: (-len(found.values), len(found.site.before)))
        chosen: dict[Site, FoundSite] = {}
        least = max(2, _LEAST_SHARE * len(self._compared))
        for found in by_support:
            family = [found]
            while (parent := family[-1].site.parent) is not None:
                family.append(by_site[parent])
            new = [each for each in reversed(family) if each.site not in chosen]
            if len(found.values) < least:
                break
            if len(set(found.values.values())) > 1 and len(chosen) + len(new) <= MAX_SITES:
                chosen |= {each.site: each for each in new}
        return list(chosen.values())

    def _compare_sections(self, old: Section, old_number: int, new: Section, new_number: int, *, is_last: bool) -> bool:
        """Whether the rest of the prompts can be compared."""
        alignment = align(old.content, new.content)
        parent: Site | None = None
        read = old_read = 0
        gaps = alignment.gaps
        for number, gap in enumerate(gaps):
            value, old_value = (
                whole_value(new.content, gap.other_start, gap.other_end),
                whole_value(old.content, gap.start, gap.end),
            )
            # The texts agree around the gap, so both are widened by what either needs.
            head = min(
                max(gap.other_start - value.start, gap.start - old_value.start),
                gap.other_start - read,
                gap.start - old_read,
            )
            limits = (len(new.content), len(old.content))
            if number + 1 < len(gaps):
                limits = (gaps[number + 1].other_start, gaps[number + 1].start)
            tail = min(
                max(value.end - gap.other_end, old_value.end - gap.end), limits[0] - gap.other_end, limits[1] - gap.end
            )
            start, end = gap.other_start - head, gap.other_end + tail
            old_start, old_end = gap.start - head, gap.end + tail
            if plain(f"x{new.content[start:end]}x") == plain(f"x{old.content[old_start:old_end]}x") or (
                not new.content[gap.other_start : gap.other_end].strip()
                and not old.content[gap.start : gap.end].strip()
            ):
                self.drift = self.drift or drift_between(old.content, new, new_number)
                continue
            if end - start == len(new.content) or old_end - old_start == len(old.content):
                return False  # another message
            after = new.content[end : min(end + _ANCHOR, limits[0])]
            if not after and is_last:
                break  # the prompt ends with it: nothing is lost
            site = Site(new.message_index, new.role, parent, new.content[read:start], after)
            found = self._known(site)
            found.values[old_number], found.offsets[old_number] = old.content[old_start:old_end], old_start
            found.values[new_number], found.offsets[new_number] = new.content[start:end], start
            parent, read, old_read = found.site, end, old_end
        return alignment.is_whole

    def _known(self, site: Site) -> FoundSite:
        """The same site if it was seen before: with a shorter text behind it, if the other is a head of it."""
        alike = self._alike.setdefault((site.message_index, site.role, site.parent, site.before), [])
        for known in alike:
            after = known.site.after
            if after == site.after or (
                after and site.after and (after.startswith(site.after) or site.after.startswith(after))
            ):
                return known
        found = FoundSite(site)
        alike.append(found)
        return found


def counted_values(found: FoundSite) -> list[str]:
    """The values in the order of their prompts, each once."""
    return list(Counter(found.values[number] for number in sorted(found.values)))
