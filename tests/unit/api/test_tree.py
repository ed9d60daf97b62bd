from __future__ import annotations

import httpx
import pytest
from tests.unit.api.fake_engine import FakeEngine

from pagefall.api.app import create_app
from pagefall.config import HttpConfig, InsightConfig
from pagefall.messages import BranchFacts

pytestmark = pytest.mark.anyio


def branch(branch_id: int, text: str, *, parent_id: int | None = None) -> BranchFacts:
    """The fake engine's tokens are characters."""
    return BranchFacts(
        branch_id=branch_id,
        parent_id=parent_id,
        start_token=16 * branch_id,
        num_own_tokens=16,
        head_token_ids=tuple(map(ord, text)),
        num_device_pages=1,
        num_host_pages=2,
        num_stored_pages=3,
        num_nodes=4,
        num_hits=5,
        idle_seconds=6.00049,
    )


async def test_a_branch_is_shown_with_the_text_it_begins_with(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.branches = (branch(0, "You are"), branch(1, " kind", parent_id=0))
    response = await client.get("/cache/tree")
    assert response.headers["cache-control"] == "no-store"
    body = response.json()
    assert body["branches"][0] == {
        "branch_id": 0,
        "parent_id": None,
        "start_token": 0,
        "num_own_tokens": 16,
        "head_text": "You are",
        "num_device_pages": 1,
        "num_host_pages": 2,
        "num_stored_pages": 3,
        "num_nodes": 4,
        "num_hits": 5,
        "idle_seconds": 6.0,
    }
    assert (body["branches"][1]["parent_id"], body["branches"][1]["head_text"]) == (0, " kind")
    assert (body["num_nodes"], body["is_complete"], body["redact_prompts"]) == (9, True, False)


async def test_a_character_that_the_head_cuts_through_is_left_out(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.branches = (branch(0, "\ufffdabc\ufffd\ufffd"),)
    assert (await client.get("/cache/tree")).json()["branches"][0]["head_text"] == "abc"


async def test_redacted_prompts_have_no_text_and_no_tokens(engine: FakeEngine) -> None:
    engine.branches = (branch(0, "secret"),)
    app = create_app(engine, HttpConfig(), insight=InsightConfig(redact_prompts=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        response = await client.get("/cache/tree")
    [shown] = response.json()["branches"]
    assert (shown["head_text"], "head_token_ids" in shown) == (None, False)


async def test_as_many_branches_are_shown_as_were_asked_for(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.branches = tuple(branch(number, "x") for number in range(60))
    assert len((await client.get("/cache/tree")).json()["branches"]) == 40
    assert len((await client.get("/cache/tree?max_branches=2")).json()["branches"]) == 2


@pytest.mark.parametrize("number", ["0", "-1", "201", "many", "", "1e2", "٣", "9" * 5000])
async def test_a_number_of_branches_out_of_range_is_refused(client: httpx.AsyncClient, number: str) -> None:
    response = await client.get("/cache/tree", params={"max_branches": number})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_branches")


async def test_a_parameter_that_means_nothing_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.get("/cache/tree?branches=3")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "branches")
