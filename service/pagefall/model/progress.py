"""Progress bars are for people."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def bars_on_terminals_only() -> Iterator[None]:
    """Inside, what is written to `sys.stderr` is dropped unless that is a terminal.

    Not every bar of `transformers` can be turned off by its own switches. Log handlers keep the stream they were made
    with and still write.
    """
    if sys.stderr.isatty():
        yield
    else:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
