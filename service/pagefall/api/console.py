"""`/` and `/console/...`: the web console. Its files are open to all; what it shows is asked for with the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pagefall.console.assets import INDEX, Asset, load_assets

_HEADERS: Final = {
    # Nothing from elsewhere, and nothing inline: text out of a prompt can never become code.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Asked for again each time, which costs one small answer; after an upgrade no old file meets a new one.
    "cache-control": "no-cache",
}


class Console:
    """The endpoints."""

    def __init__(self, greeting: str) -> None:
        """`greeting` is for those who are no browser: a line that says what answers here."""
        self._greeting = greeting
        self._assets: Mapping[str, Asset] = load_assets()

    async def index(self, request: Request) -> Response:
        """The page for browsers; one line for everything else."""
        if "text/html" in request.headers.get("accept", ""):
            return _respond(request, self._assets[INDEX], vary="Accept, Accept-Encoding")
        return PlainTextResponse(
            f"{self._greeting}: POST /v1/chat/completions\nOpen this address in a browser to see its cache at work.\n",
            headers={"vary": "Accept"},
        )

    async def asset(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        return _respond(request, asset, vary="Accept-Encoding")


def _respond(request: Request, asset: Asset, *, vary: str) -> Response:
    headers = {**_HEADERS, "etag": asset.etag, "vary": vary}
    known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
    if asset.etag in known:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=asset.media_type)
    return Response(asset.content, headers=headers, media_type=asset.media_type)
