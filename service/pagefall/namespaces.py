"""The namespace under which a server's pages are known to itself after a restart, and to others."""

from __future__ import annotations

from pagefall.cache.namespace import Namespace
from pagefall.config import CacheConfig
from pagefall.model.file_digests import FileDigests
from pagefall.model.fingerprint import fingerprint
from pagefall.model.gguf import cache_folder
from pagefall.model.spec import ModelSpec


def namespace_of(spec: ModelSpec, cache: CacheConfig) -> Namespace:
    """Two servers with equal ones compute the same bytes for the same tokens, and share pages.

    Reads the weights the first time (about 0.7 s for each GB and core), so call it off the event loop, and after they
    were loaded: the files are in memory then. Raises `ModelError`.
    """
    model = fingerprint(spec, kv_dtype=spec.dtype, digests=FileDigests(cache_folder() / "digests"))
    return Namespace(
        model_digest=model.model_digest,
        architecture=model.architecture,
        rope=model.rope,
        compute_dtype=model.compute_dtype,
        kv_dtype=model.kv_dtype,
        page_size=cache.page_size,
        layout=model.layout,
    )
