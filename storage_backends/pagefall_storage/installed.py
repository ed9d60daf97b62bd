"""Which backends this Python has, and what they say about themselves."""

from __future__ import annotations

from importlib.metadata import EntryPoint, PackageNotFoundError, version

import msgspec

from pagefall_storage.about import About, about
from pagefall_storage.errors import StorageConfigError
from pagefall_storage.registry import candidates, find, known_backends, load


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """`distribution`, `version`: the package that brings it. `problem`: in one line why it cannot be used, or None."""

    name: str
    distribution: str
    version: str
    about: About
    problem: str | None


def installed_backends() -> list[Installed]:
    """Every backend, by name. Imports them all: one that cannot be used is in the list, with its problem."""
    return [_installed(entry) for name in known_backends() for entry in candidates(name)]


def _installed(entry: EntryPoint) -> Installed:
    said, problem = About(), None
    try:
        if find(entry.name) != entry:
            problem = "not used: Pagefall's own has this name"
        else:
            said = about(load(entry))
    except StorageConfigError as error:
        problem = str(error)
    distribution, its_version = _origin(entry)
    return Installed(name=entry.name, distribution=distribution, version=its_version, about=said, problem=problem)


def _origin(entry: EntryPoint) -> tuple[str, str]:
    if entry.dist is not None:
        return entry.dist.name, entry.dist.version
    try:
        return "pagefall", version("pagefall")
    except PackageNotFoundError:  # run from its source
        return "pagefall", "unknown"
