"""Whether a stored value belongs under its name, told from the two alone."""

from __future__ import annotations

import re
from typing import Final

from pagefall.tiers.manifest import MANIFEST_NAME, NAMESPACE_DIGITS
from pagefall_storage import page_format
from pagefall_storage.protocol import Corrupt, Hit, Key

VALUE_NAME: Final = re.compile(rf"([0-9a-f]{{{NAMESPACE_DIGITS}}})/([0-9a-f]{{64}}|{MANIFEST_NAME})")
"""Names of pages and manifests; its groups are the beginning of the namespace, and which value of it."""

_NAMESPACE_IN_HEADER: Final = slice(48, 80)  # see `page_format`


def check_value(key: Key, value: memoryview) -> Hit | Corrupt:
    """The header has the whole namespace of which the name has a part. What is not Pagefall's is not judged."""
    name = VALUE_NAME.fullmatch(key)
    if name is None:
        return Hit()
    namespace, page = name.groups()
    digest = bytes(value[_NAMESPACE_IN_HEADER])
    if page == MANIFEST_NAME:
        page = digest.hex()
    sound = page_format.verify(value, key=bytes.fromhex(page), namespace=digest)
    if isinstance(sound, Hit) and not digest.hex().startswith(namespace):
        return Corrupt("other namespace")
    return sound
