"""GET /v1/models, which three dialects have: each client is told in its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import hdrs, web

from gateway.api import anthropic_models_list, gemini, openai
from gateway.api.gemini_objects import ModelReply, ModelsReply
from gateway.envelopes import Dialect, dialect_of
from gateway.error_replies import AnthropicErrorReply, GoogleErrorReply
from gateway.routes import LOOK_ERRORS, Route, in_dialect

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OTHER_ERRORS = (AnthropicErrorReply, GoogleErrorReply)
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


MODEL_ROUTES = in_dialect(
    openai.DIALECT,
    Route(
        hdrs.METH_GET,
        "/v1/models",
        list_models,
        "List the model and its adapters.",
        answer=openai.ModelList,
        other_answers=(anthropic_models_list.ModelPage, ModelsReply),
        errors=LOOK_ERRORS,
        other_error_replies=_OTHER_ERRORS,
    ),
    Route(
        hdrs.METH_GET,
        "/v1/models/{model:.+}",  # hub names have a slash in them
        show_model,
        "Tell about one model or adapter.",
        answer=openai.ModelCard,
        other_answers=(anthropic_models_list.ModelCard, ModelReply),
        errors=(*LOOK_ERRORS, 404),
        other_error_replies=_OTHER_ERRORS,
    ),
)
