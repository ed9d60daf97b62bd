"""`GET /v1/models` and `GET /v1/models/{model}`."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.api.wire_sampling import check_model
from pagefall.text.requests import ModelCard


class WireModel(msgspec.Struct, frozen=True, kw_only=True):
    """`max_model_len` is the context in tokens, under the name that other engines gave it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pagefall"
    root: str | None
    max_model_len: int


class WireModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[WireModel, ...]


class Models:
    """The endpoints: there is one model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def all(self, request: Request) -> Response:
        return json_response(WireModelList(data=(_wire_model(self._engine.model),)))

    async def one(self, request: Request) -> Response:
        check_model(request.path_params["model"], self._engine.model)
        return json_response(_wire_model(self._engine.model))


def _wire_model(card: ModelCard) -> WireModel:
    return WireModel(id=card.id, created=card.created, root=card.root, max_model_len=card.context_length)
