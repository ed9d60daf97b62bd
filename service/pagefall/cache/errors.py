"""What can go wrong inside the cache. All of these are bugs of a caller or of the cache itself, never of a request."""

from __future__ import annotations


class PageError(ValueError):
    """A page was freed that is free already, or that the pool does not have. Nothing was changed."""


class LeaseError(RuntimeError):
    """A lease was used after its end, with another cache, or past the pages it holds. Nothing was changed."""


class ConservationError(RuntimeError):
    """A full recount of the pages disagrees with the books. The message carries the numbers."""
