"""Keeps torch out of a process that has no tensors to compute: importing it takes seconds."""

from __future__ import annotations

import os
import sys
from typing import cast


def leave_torch_out() -> None:
    """From now on torch cannot be imported, and `transformers`, which looks for it, offers tokenizers alone.

    For the whole process, so call it first in one that ends with its command; it does nothing once torch is there.
    """
    if "torch" not in sys.modules:
        # None is Python's own mark for a module that is not to be found.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say so, and warn of what is meant
        cast("dict[str, object]", sys.modules)["torch"] = None
