"""What entered and left the tiers, in order, for those who keep a memory of it. The tree writes, its owner takes."""

from __future__ import annotations

from typing import NamedTuple

from pagefall.messages import EvictionCause, Tier

KEY_BYTES = 32


class TierChange(NamedTuple):
    """Pages entered a tier (`cause` None) or left it (`cause` says why).

    `keys` are their page keys, `KEY_BYTES` each, in the order of the sequence. `is_gone`: no tier of the tree has them
    any more; `is_stored`: the store had them when last heard of. No keys: everything left the tier, or, without
    a `cause`, the tier is another one from now on: what was in the one before may be there for others still.
    """

    tier: Tier
    keys: bytes
    cause: EvictionCause | None = None
    is_gone: bool = False
    is_stored: bool = False


class TierKeys(NamedTuple):
    """The page keys in each tier, `KEY_BYTES` each. `storage`: as far as the tree knows."""

    device: bytes
    host: bytes
    storage: bytes
