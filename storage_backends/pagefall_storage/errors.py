"""What can go wrong with a store that is not an outcome of a single value."""

from __future__ import annotations


class StorageError(Exception):
    """The store could not answer. The message is one line."""


class StorageConfigError(ValueError):
    """The configuration of a backend is not usable. The message is one line that names the field and the fix."""


class UnknownBackendError(StorageConfigError):
    """There is no backend of that name, or none that can be loaded."""
