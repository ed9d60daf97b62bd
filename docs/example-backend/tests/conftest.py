"""So that the conformance suite shows what it compared."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("pagefall_storage.testing")
