"""docs/deploy.md: its numbers are right, its commands are ones that work, and what it names is there."""

from __future__ import annotations

import re
import shlex
from typing import Final

import pytest
import yaml  # type: ignore[import-untyped]
from tests.deployment_files import REPOSITORY, compose, dockerfile, example_environment, parsed, words

from pagefall.config import ServeConfig

GUIDE: Final = (REPOSITORY / "docs" / "deploy.md").read_text()
PAGE_SIZE: Final = 16
HEADER_BYTES: Final = 128
REDIS_BYTES: Final = {368_768: 393_272, 917_632: 1_048_632, 2_097_280: 2_621_496, 5_243_008: 6_291_512}
"""What `MEMORY USAGE` of Redis 7.0 says a value of so many bytes takes."""


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose head begins with `first`."""
    [table] = [block for block in GUIDE.split("\n\n") if block.startswith(f"| {first} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]


def number(text: str) -> float:
    return float(text.replace(",", "").split()[0])


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```bash\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.strip()]


def test_the_sizes_of_tokens_are_what_the_formula_gives() -> None:
    table = rows("model")
    assert len(table) == 4
    for _, layers, heads, head_size, token, in_memory, in_redis in table:
        token_bytes = 2 * int(layers) * int(heads) * int(head_size) * 2
        assert number(token) == token_bytes
        assert number(in_memory) == 10**9 // token_bytes
        value_bytes = REDIS_BYTES[PAGE_SIZE * token_bytes + HEADER_BYTES]
        assert number(in_redis) == 10**9 * PAGE_SIZE // value_bytes


def test_what_a_store_must_give_is_the_product_of_size_and_pace() -> None:
    token_bytes = {row[0]: number(row[4]) for row in rows("model")}
    table = rows("where")
    assert len(table) == 3
    for _, model, pace, needed in table:
        assert number(needed) == pytest.approx(token_bytes[model] * number(pace) / 1e6, rel=0.005)


def test_the_worked_example_adds_up() -> None:
    token_bytes = 131_072
    device = 64e9 * 0.88
    assert round(device / token_bytes, -3) == 430_000
    assert f"{round(2 * device / 1e9)} GB" in GUIDE
    assert f"{round(200 * 4_000 * token_bytes / 1e9)} GB" in GUIDE
    assert f"{5_000 * 4_000 * token_bytes / 1e12:.1f} TB" in GUIDE
    assert round(5_000 * 4_000 * token_bytes / 1e9 * 0.023, -1) == 60
    assert round(64e9 / 2_621_496 * PAGE_SIZE, -4) == 390_000


def test_the_commands_that_start_servers_are_ones_the_program_takes() -> None:
    started = [command[1:] for command in commands() if command[0] == "pagefall"]
    assert [command[0] for command in started] == ["serve", "router"]
    for command in started:
        assert parsed(command).http.host == "0.0.0.0"


def test_every_profile_is_in_the_table_and_the_commands_name_services() -> None:
    services = compose()["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    table = rows("profile")
    assert {row[0].strip("`") for row in table} == profiles
    for row in table:
        typed = shlex.split(row[2].strip("`"))
        assert typed[typed.index("--profile") + 1] == row[0].strip("`")
        assert set(typed[typed.index("up") + 2 :]) <= services.keys()


def test_every_variable_of_the_guide_is_one_of_the_example() -> None:
    known = example_environment().keys() | {
        word.split("=")[0] for each in dockerfile() if each.name == "ENV" for word in each.value.split()
    }
    containers = GUIDE[GUIDE.index("## Containers") : GUIDE.index("## A machine of its own")]
    named = set(re.findall(r"\b((?:PAGEFALL|AWS|REDIS)_[A-Z_]+)\b", containers))
    assert len(named) >= 7
    assert named <= known


def test_every_file_and_every_link_of_the_guide_is_there() -> None:
    named = re.findall(r"(?<![/\w])(docker/[\w./,-]*[\w])", GUIDE)
    assert len(named) >= 10
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
    links = re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", GUIDE)
    assert [link for link in links if not (REPOSITORY / "docs" / link).exists()] == []
    headings = {
        re.sub(r"[^\w-]", "", line[3:].lower().replace(" ", "-"))
        for line in GUIDE.splitlines()
        if line.startswith("## ")
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", GUIDE)) <= headings


def test_flags_that_the_guide_names_are_real() -> None:
    ours = {"--mem-fraction-static", "--hicache-ratio", "--hicache-size", "--page-size", "--shutdown-grace-seconds"}
    flags = (REPOSITORY / "docs" / "flags.md").read_text()
    for flag in ours:
        assert flag in GUIDE
        assert f"`{flag}`" in flags


def test_the_workers_of_a_cluster_have_what_the_guide_says_they_must_share() -> None:
    services = yaml.safe_load(yaml.safe_dump(compose()))["services"]
    first, second = (parsed(words(services[name]["command"])) for name in ("worker-a", "worker-b"))
    assert isinstance(first, ServeConfig)
    assert first == second
