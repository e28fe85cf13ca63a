"""The routes of the OpenAI dialect, and the model list."""

from __future__ import annotations

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from gateway.api.openai_chat import create_chat_completion
from gateway.api.openai_completions import create_completion
from gateway.http import SERVICE, defer_continue, json_response
from gateway.service import Served


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a model; `max_model_len` is an extension that other servers have too."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "prefixcache"
    max_model_len: int
    parent: str | UnsetType = UNSET  # of an adapter: the model that it is for, as others have it

    @classmethod
    def of(cls, served: Served) -> ModelCard:
        """Return the card of the served model, or of an adapter."""
        return cls(
            id=served.name,
            created=served.since,
            max_model_len=served.info.max_model_tokens,
            parent=UNSET if served.parent is None else served.parent,
        )


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models: one, and its adapters."""

    object: str = "list"
    data: list[ModelCard]


async def list_models(request: web.Request) -> web.Response:
    """Answer with the list of models."""
    served = request.app[SERVICE].served()
    cards = [ModelCard.of(served.called(name)) for name in served.names]
    return json_response(msgspec.json.encode(ModelList(data=cards)))


async def show_model(request: web.Request) -> web.Response:
    """Answer with one model or adapter, if it is served."""
    served = request.app[SERVICE].served_as(request.match_info["model"])
    return json_response(msgspec.json.encode(ModelCard.of(served)))


def add_openai_routes(router: web.UrlDispatcher) -> None:
    """Add the dialect's routes."""
    router.add_post("/v1/chat/completions", create_chat_completion, expect_handler=defer_continue)
    router.add_post("/v1/completions", create_completion, expect_handler=defer_continue)
