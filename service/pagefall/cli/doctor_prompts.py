"""`pagefall doctor prompts FILE.jsonl`: the diagnosis of a log of requests, without a server."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from tqdm import tqdm

from pagefall.cli.doctor import as_json
from pagefall.cli.doctor_flags import PROMPTS_FLAGS, PromptsCommand, PromptsConfig
from pagefall.cli.doctor_text import render
from pagefall.cli.parser import build_config, parse_arguments
from pagefall.cli.request_lines import BadLineError, LineReader
from pagefall.cli.tokenizer_only import load_tokenizer_only
from pagefall.errors import ConfigError
from pagefall.insight.diagnosis.diagnose import diagnose, num_cached
from pagefall.insight.diagnosis.observations import Capacities, Observation, Traffic

_BIG_FILE: Final = 4 * 1024 * 1024
"""Bytes from which on a bar shows how far it is."""

_TOKEN_COST: Final = 64
"""Tokens that any request counts as beside its own, since it takes memory too."""


class Log(msgspec.Struct):
    """What was read. `num_earlier_tokens` are of requests that had to go; `bad` has the first bad line."""

    observations: Sequence[Observation]
    num_earlier_tokens: int = 0
    num_bad: int = 0
    bad: str = ""


def doctor_prompts(argv: Sequence[str]) -> int:
    """Raises `ConfigError` for flags, files and lines that cannot be used, `ModelError` without a tokenizer."""
    names, flags = _positionals(argv)
    command: PromptsCommand = build_config(
        PROMPTS_FLAGS, PromptsCommand, parse_arguments(PROMPTS_FLAGS, flags, os.environ)
    )
    if len(names) != 1:
        raise ConfigError("doctor prompts: needs one FILE, or - for standard input; see --help")
    config = command.prompts
    with _opened(names[0]) as (file, size):
        reader = LineReader(load_tokenizer_only(command.model), config.page_size)
        log = read_log(file, reader, config, name=names[0], size=size)
    if log.num_bad:
        sys.stderr.write(f"{log.num_bad:,} lines could not be used, the first: {log.bad}\n")
    diagnosis = diagnose(traffic_of(log, config), show_text=not config.redact_prompts)
    sys.stdout.write(as_json(diagnosis) if config.json else render(diagnosis))
    return 0


def read_log(file: BinaryIO, reader: LineReader, config: PromptsConfig, *, name: str, size: int = 0) -> Log:
    """The last requests of `file` that have no more than `max_tokens`, in the order of their times where all have one.

    Raises `ConfigError` for the first bad line, with its number, unless these are to be skipped.
    """
    kept: deque[Observation] = deque()
    num_kept = num_earlier = num_bad = 0
    bad = ""
    with tqdm(
        total=size, unit="B", unit_scale=True, desc="reading", leave=False, disable=size < _BIG_FILE, file=sys.stderr
    ) as bar:
        for number, line in enumerate(file, 1):
            try:
                observations = list(reader.read(line))
            except BadLineError as error:
                if not config.skip_bad:
                    raise ConfigError(
                        f"{name}, line {number}: {error}. --skip-bad goes on without such lines."
                    ) from error
                num_bad, bad = num_bad + 1, bad or f"line {number}: {error}"
                continue
            bar.update(len(line))
            for observation in observations:
                kept.append(observation)
                num_kept += len(observation.token_ids) + _TOKEN_COST
            while num_kept > config.max_tokens and len(kept) > 1:
                num_oldest = len(kept.popleft().token_ids)
                num_kept, num_earlier = num_kept - num_oldest - _TOKEN_COST, num_earlier + num_oldest
    ordered = sorted(kept, key=lambda each: each.time or 0.0) if all(each.time is not None for each in kept) else kept
    return Log(list(ordered), num_earlier, num_bad, bad)


def traffic_of(log: Log, config: PromptsConfig) -> Traffic:
    """With the sizes that the flags give, and the pace that a request log tells."""
    num_saved = sum(num_cached(each.report) for each in log.observations if each.report is not None)
    saved_seconds = sum(each.report.saved_seconds for each in log.observations if each.report is not None)

    def pages(num_tokens: int | None) -> int | None:
        return None if num_tokens is None else max(1, num_tokens // config.page_size)

    return Traffic(
        observations=log.observations,
        page_size=config.page_size,
        capacities=Capacities(
            device_pages=pages(config.device_tokens),
            host_pages=pages(config.host_tokens),
            storage_pages=pages(config.storage_tokens),
            has_storage=config.storage_tokens is not None,
        ),
        seconds_per_token=saved_seconds / num_saved if num_saved and saved_seconds else None,
        num_earlier_tokens=log.num_earlier_tokens,
    )


def _positionals(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that are no flags and no values of flags, and all others."""
    switches = {"--skip-bad", "--json", "--redact-prompts", "--trust-remote-code", "--help", "-h"}
    names: list[str] = []
    flags: list[str] = []
    is_value = False
    for word in argv:
        is_flag = word.startswith("-") and word != "-"
        if is_value or is_flag:
            flags.append(word)
            is_value = not is_value and word not in switches and "=" not in word
        else:
            names.append(word)
    return names, flags


@contextmanager
def _opened(name: str) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its size in bytes, 0 where that is not known."""
    if name == "-":
        yield sys.stdin.buffer, 0
        return
    path = Path(name)
    try:
        with path.open("rb") as file:
            yield file, path.stat().st_size
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from error
