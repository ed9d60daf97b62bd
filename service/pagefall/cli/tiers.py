"""The flags of the tiers: what they mean together, and what makes no sense."""

from __future__ import annotations

from typing import Final

import msgspec

from pagefall.cli.extra_config import check_backend, read_extra_config
from pagefall.cli.flags import options
from pagefall.cli.parser import Given, GivenValues, contradiction
from pagefall.cli.serve_flags import SERVE_FLAGS
from pagefall.cli.values import from_toml
from pagefall.config import ServeConfig
from pagefall.errors import ConfigError
from pagefall_storage.registry import known_backends

_EXTRA: Final = "hicache-storage-backend-extra-config"
_BACKEND: Final = "hicache-storage-backend"

_PREFETCH_SETTINGS: Final = ("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token")
"""SGLang has these among the store's settings. Here each is a flag, `--hicache-` and its name, that they set."""

_NEED_A_STORE: Final = (_EXTRA, "hicache-storage-required")
"""The others about a store are those of one that is attached later, too."""


def resolve_tiers(given: GivenValues) -> GivenValues:
    """`given` with the store's settings read, SGLang's prefetch settings taken out of them, and a size of 0 left out.

    Raises `ConfigError` naming the flag and the fix.
    """
    resolved = dict(given)
    if "hicache-size" in resolved and resolved["hicache-size"].value == 0:  # SGLang's way to say that it is not set
        del resolved["hicache-size"]
    if _EXTRA in resolved:
        source = resolved[_EXTRA].source
        settings = read_extra_config(resolved[_EXTRA])
        known = options(SERVE_FLAGS)
        for name in _PREFETCH_SETTINGS:
            if name in settings:
                flag = f"hicache-{name.replace('_', '-')}"
                where = f"{name} in {source}"
                if flag in resolved:
                    raise ConfigError(f"{where}: {resolved[flag].source} sets it too; keep one")
                resolved[flag] = Given(from_toml(known[flag], settings.pop(name), where), where)
        resolved[_EXTRA] = Given(msgspec.json.encode(settings).decode(), source)
    return resolved


def refuse_tier_contradictions(given: GivenValues, config: ServeConfig) -> None:
    """Raises `ConfigError` for a flag that would have no effect, and for a store that is not known."""
    tiers = config.tiers
    if not tiers.enable_hierarchical_cache:
        for name, option in options(SERVE_FLAGS).items():
            if option.part == "tiers" and name in given and name != "enable-hierarchical-cache":
                raise ConfigError(f"{given[name].source}: needs --enable-hierarchical-cache")
        return
    if config.cache.disable_radix_cache:
        raise contradiction(
            given, "enable-hierarchical-cache", "disable-radix-cache", "the tiers hold what the radix cache knows"
        )
    if "hicache-selective-hits" in given and tiers.hicache_write_policy != "write_through_selective":
        raise ConfigError(
            f"{given['hicache-selective-hits'].source}: needs --hicache-write-policy write_through_selective"
        )
    if tiers.hicache_storage_backend is not None:
        check_backend(tiers.hicache_storage_backend, given[_BACKEND].source, known_backends())
        return
    for name in _NEED_A_STORE:
        if name in given:
            raise ConfigError(f"{given[name].source}: needs --{_BACKEND}")
