"""GET /v1/models, which three dialects have: each client is told in its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from gateway.api import anthropic_models_list, gemini, openai
from gateway.envelopes import Dialect, dialect_of

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LISTS: Mapping[Dialect, _Handler] = {
    Dialect.OPENAI: openai.list_models,
    Dialect.ANTHROPIC: anthropic_models_list.list_models,
    Dialect.GOOGLE: gemini.list_models,
}
_ONES: Mapping[Dialect, _Handler] = {
    Dialect.OPENAI: openai.show_model,
    Dialect.ANTHROPIC: anthropic_models_list.show_model,
    Dialect.GOOGLE: gemini.show_model,
}


async def list_models(request: web.Request) -> web.StreamResponse:
    """Answer with the list of models."""
    return await _LISTS[dialect_of(request)](request)


async def show_model(request: web.Request) -> web.StreamResponse:
    """Answer with one model or adapter, if it is served."""
    return await _ONES[dialect_of(request)](request)


def add_model_routes(router: web.UrlDispatcher) -> None:
    """Add the two routes."""
    router.add_get("/v1/models", list_models)
    router.add_get("/v1/models/{model:.+}", show_model)  # hub names have a slash in them
