"""What a factory of backends says about them, for `pagefall backends` to show.

    @described(config_type=MyConfig, capabilities={"shared", "durable"})
    async def open_mystore(config: Mapping[str, object], *, value_bytes: int | None) -> MyStore: ...

Saying nothing is allowed: a store works without.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec

Capability = Literal["durable", "shared", "evicts", "last_used"]
"""durable: values outlive the process. shared: several servers may have it open at once. evicts: it makes room by
itself when it is full. last_used: `scan` tells when a value was used last.
"""

FactoryT = TypeVar("FactoryT", bound=Callable[..., object])

_ATTRIBUTE: Final = "about"
_ORDER: Final[tuple[Capability, ...]] = get_args(Capability)


class About(msgspec.Struct, frozen=True):
    """`config_type`: the struct that the factory reads its configuration as; None: it does not say."""

    config_type: type[msgspec.Struct] | None = None
    capabilities: tuple[Capability, ...] = ()


def described(
    *, config_type: type[msgspec.Struct], capabilities: Set[Capability] = frozenset()
) -> Callable[[FactoryT], FactoryT]:
    """Marks a factory, which stays as it is. The docstring of `config_type` is shown to the user."""
    about = About(config_type, tuple(each for each in _ORDER if each in capabilities))

    def mark(factory: FactoryT) -> FactoryT:
        vars(factory)[_ATTRIBUTE] = about
        return factory

    return mark


def about(factory: Any) -> About:
    """What `described` was told; nothing for a factory without it."""
    found = getattr(factory, _ATTRIBUTE, None)
    return found if isinstance(found, About) else About()
