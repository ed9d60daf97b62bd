"""`python -m pagefall` and the `pagefall` command."""

from __future__ import annotations

import sys

from pagefall.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
