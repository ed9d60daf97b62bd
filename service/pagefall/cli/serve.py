"""`pagefall serve`: from flags, environment and file to a `ServeConfig` that contradicts itself nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pagefall.cli.config_file import read_config_file
from pagefall.cli.parser import GivenValues, build_config, contradiction, parse_arguments
from pagefall.cli.serve_flags import SERVE_FLAGS
from pagefall.cli.template import template_text
from pagefall.cli.tiers import refuse_tier_contradictions, resolve_tiers
from pagefall.config import ServeConfig
from pagefall.errors import ConfigError


def parse_serve(argv: Sequence[str], environ: Mapping[str, str]) -> ServeConfig:
    """The configuration that `argv` asks for: flags win over `environ`, it over the `--config` file, it over defaults.

    Reads the files that the flags name and touches nothing else. Raises `ConfigError` naming the value and the fix;
    `--help` prints and raises `SystemExit`.
    """
    given = parse_arguments(SERVE_FLAGS, argv, environ)
    if "config" in given:
        given = {**read_config_file(SERVE_FLAGS, Path(given["config"].value)), **given}
    if "chat-template" in given:
        given = {**given, "chat-template": template_text(given["chat-template"])}
    given = resolve_tiers(given)
    config: ServeConfig = build_config(SERVE_FLAGS, ServeConfig, given)
    _refuse_contradictions(given, config)
    return config


def _refuse_contradictions(given: GivenValues, config: ServeConfig) -> None:
    """Values that are fine alone and make no sense together. Only what the user wrote can contradict."""
    refuse_tier_contradictions(given, config)
    model, cache = config.model, config.cache
    if config.parallel.dp_size == 1 and "load-balance-method" in given:
        raise ConfigError(f"{given['load-balance-method'].source}: needs --dp-size 2 or more; one worker gets all")
    pool_tokens, context_length = cache.max_total_tokens, model.context_length
    if cache.disable_radix_cache and "radix-eviction-policy" in given:
        raise contradiction(given, "radix-eviction-policy", "disable-radix-cache", "there is nothing to evict")
    if pool_tokens is not None and cache.mem_fraction_static is not None:
        raise contradiction(given, "mem-fraction-static", "max-total-tokens", "both size the device pool")
    if pool_tokens is not None and pool_tokens < cache.page_size:
        raise ConfigError(
            f"{given['max-total-tokens'].source}: {pool_tokens} tokens hold no page of {cache.page_size}; "
            f"raise it, or lower --page-size"
        )
    if pool_tokens is not None and context_length is not None and pool_tokens < context_length:
        raise ConfigError(
            f"{given['context-length'].source}: {context_length} tokens never fit into "
            f"{given['max-total-tokens'].source} {pool_tokens}; lower the first or raise the second"
        )
    if model.revision is not None and model.model_path is None:
        raise ConfigError(f"{given['revision'].source}: needs --model-path, the embedded model has one revision")
    if model.revision is not None and model.model_path is not None and Path(model.model_path).exists():
        raise ConfigError(f"{given['revision'].source}: {model.model_path} is local and has no revisions; remove it")
