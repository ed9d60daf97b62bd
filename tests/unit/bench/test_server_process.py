from __future__ import annotations

import pytest

from pagefall.bench.server_process import served
from pagefall.errors import PagefallError

pytestmark = pytest.mark.anyio


async def test_a_server_that_does_not_start_is_reported_with_its_last_words() -> None:
    with pytest.raises(PagefallError, match=r"the server did not start: --prot: unknown; did you mean --port"):
        async with served(["--prot", "1"], {}):
            pass
