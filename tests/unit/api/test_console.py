from __future__ import annotations

import httpx
import pytest
from tests.unit.api.fake_engine import MODEL

pytestmark = pytest.mark.anyio

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


async def test_a_browser_gets_the_page(client: httpx.AsyncClient) -> None:
    response = await client.get("/", headers=BROWSER)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Pagefall</title>" in response.text
    assert response.headers["vary"] == "Accept, Accept-Encoding"


async def test_anything_else_gets_a_line_of_text(client: httpx.AsyncClient) -> None:
    response = await client.get("/")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text.startswith(f"Pagefall serves {MODEL} here")
    assert response.headers["vary"] == "Accept"


@pytest.mark.parametrize("path", ["/", "/console/app.js"])
async def test_nothing_from_elsewhere_and_nothing_inline_may_run(client: httpx.AsyncClient, path: str) -> None:
    headers = (await client.get(path, headers=BROWSER)).headers
    policy = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("app.js", "text/javascript; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("mark.svg", "image/svg+xml"),
    ],
)
async def test_a_file_comes_with_its_type(client: httpx.AsyncClient, name: str, media_type: str) -> None:
    response = await client.get(f"/console/{name}")
    assert (response.status_code, response.headers["content-type"]) == (200, media_type)


async def test_a_file_that_a_browser_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/console/app.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    again = await client.get("/console/app.js", headers={"if-none-match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    changed = await client.get("/console/app.js", headers={"if-none-match": '"other"'})
    assert (changed.status_code, changed.content) == (200, first.content)


async def test_a_file_is_compressed_for_whoever_takes_that(client: httpx.AsyncClient) -> None:
    packed = await client.get("/console/app.js", headers={"accept-encoding": "gzip, br"})
    plain = await client.get("/console/app.js", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("name", ["nothing.js", "..%2F__init__.py", "../assets.py", "%2e%2e/assets.py", "", "app.js/"])
async def test_no_name_leads_out_of_the_folder(client: httpx.AsyncClient, name: str) -> None:
    response = await client.get(f"http://server/console/{name}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
