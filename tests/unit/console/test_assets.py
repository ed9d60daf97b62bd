from __future__ import annotations

import re
from typing import get_args

import pytest

from pagefall.console.assets import INDEX, load_assets
from pagefall.messages import MissReason, TokenSource

ASSETS = load_assets()
TEXTS = {name: asset.content.decode() for name, asset in ASSETS.items()}
SCRIPTS = sorted(name for name in ASSETS if name.endswith(".js"))


def imported(name: str) -> set[str]:
    return set(re.findall(r'from "\./([\w.-]+)"', TEXTS[name]))


def test_all_that_the_page_and_its_modules_name_is_there_and_nothing_else() -> None:
    named = set(re.findall(r'(?:src|href)="console/([\w.-]+)"', TEXTS[INDEX]))
    reached: set[str] = set()
    while named - reached:
        name = (named - reached).pop()
        reached.add(name)
        if name.endswith(".js"):
            named |= imported(name)
    assert reached | {INDEX} == set(ASSETS)


def test_every_name_that_a_module_imports_is_exported_there() -> None:
    for name in SCRIPTS:
        for names, other in re.findall(r'import \{([^}]*)\} from "\./([\w.-]+)"', TEXTS[name]):
            exported = set(
                re.findall(r"^export (?:async )?(?:function\*?|const|class) (\w+)", TEXTS[other], re.MULTILINE)
            )
            assert {part.strip() for part in names.split(",") if part.strip()} <= exported, (name, other)


def keys_of(name: str) -> list[str]:
    """Of an object in words.js."""
    found = re.search(rf"^export const {name} = \{{\n(.*?)^\}};", TEXTS["words.js"], re.MULTILINE | re.DOTALL)
    assert found is not None
    return re.findall(r"^  (\w+): ", found[1], re.MULTILINE)


def test_every_reason_and_every_source_has_its_words_and_nothing_else_has() -> None:
    assert sorted(keys_of("REASON_WORDS")) == sorted(get_args(MissReason))
    assert sorted(keys_of("SOURCE_WORDS")) == sorted(get_args(TokenSource))


def test_the_page_has_no_code_and_no_style_inline() -> None:
    assert re.findall(r"<script(?![^>]*\bsrc=)", TEXTS[INDEX]) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", TEXTS[INDEX]) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_text_is_ever_parsed_as_html_or_run(name: str) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    assert re.findall(forbidden, TEXTS[name]) == []


@pytest.mark.parametrize("name", sorted(ASSETS))
def test_nothing_names_another_host(name: str) -> None:
    text = TEXTS[name].replace("http://www.w3.org/2000/svg", "")  # the name of a language, asked of nobody
    assert re.findall(r"https?://|//[\w-]+\.\w+/|@import|url\(", text) == []


def test_a_first_load_is_small() -> None:
    assert sum(len(asset.content) for asset in ASSETS.values()) < 120_000
    assert sum(len(asset.compressed) for asset in ASSETS.values()) < 60_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(scheme: str) -> None:
    """WCAG AA: 4.5 to 1 for text, 3 to 1 for what colours tell apart."""
    colours = palette(scheme)
    for ground in ("bg", "surface", "sunken"):
        for text in ("ink", "muted", "link", "bad"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for text, ground in (
        ("good", "good-bg"),
        ("warn", "warn-bg"),
        ("bad", "bad-bg"),
        ("mark-ink", "mark"),
        ("on-accent", "accent"),
    ):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for kind in ("device", "host", "storage", "computed", "accent"):
        assert contrast(colours[kind], colours["surface"]) >= 3, kind


def palette(scheme: str) -> dict[str, str]:
    """The custom properties that hold a colour in `scheme`: those of the first rule, and what the dark one changes."""
    style = TEXTS["style.css"]
    rules = [style[: style.index("}")]]
    if scheme == "dark":
        start = style.index(':root[data-scheme="dark"] {\n')
        rules.append(style[start : style.index("}", start)])
    return {name: colour for rule in rules for name, colour in re.findall(r"--([\w-]+): (#[0-9a-f]{6});", rule)}


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_both_ways_to_the_dark_scheme_have_the_same_colours() -> None:
    style = TEXTS["style.css"]
    by_system = style[style.index('not([data-scheme="light"])') :]
    by_choice = style[style.index(':root[data-scheme="dark"] {\n') :]
    colours = r"--([\w-]+): ([^;]+);"
    assert re.findall(colours, by_system[: by_system.index("}")]) == re.findall(
        colours, by_choice[: by_choice.index("}")]
    )
