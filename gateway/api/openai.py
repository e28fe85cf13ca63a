"""The routes of the OpenAI dialect, and the model list."""

from __future__ import annotations

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET, UnsetType

from gateway.api.openai_chat import create_chat_completion
from gateway.api.openai_completions import create_completion
from gateway.api.openai_models import ChatBody, CompletionBody
from gateway.api.openai_replies import ChatReply, TextReply
from gateway.api.responses import create_response
from gateway.api.responses_models import ResponseBody
from gateway.api.responses_replies import Deleted, InputTokens, ItemList, Response
from gateway.api.responses_stored import (
    PageQuery,
    ShowQuery,
    count_input_tokens,
    delete_response,
    list_input_items,
    show_response,
)
from gateway.api.served_models import named_model, served_for
from gateway.http import SERVICE, record_of, reply
from gateway.routes import ANSWER_ERRORS, COUNT_ERRORS, READ_ERRORS, Route, in_dialect
from gateway.served import Served

DIALECT = "openai"

_API_VERSION = "2020-10-01"  # OpenAI's own, the only one there is


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
    """Answer with the list of models that the tenant may ask."""
    cards = [ModelCard.of(served) for served in served_for(request)]
    return reply(ModelList(data=cards))


async def show_model(request: web.Request) -> web.Response:
    """Answer with one model or adapter, if it is served."""
    return reply(ModelCard.of(named_model(request)))


async def add_openai_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Tell what OpenAI's clients log of an answer (for `Application.on_response_prepare`)."""
    resource = request.match_info.route.resource
    if resource is not None and resource.canonical in _PATHS:
        seconds = request.app[SERVICE].clock() - record_of(request).started
        response.headers["openai-version"] = _API_VERSION
        response.headers["openai-processing-ms"] = str(round(1000 * seconds))


OPENAI_ROUTES = in_dialect(
    DIALECT,
    Route(
        hdrs.METH_POST,
        "/v1/responses",
        create_response,
        "Answer a conversation with items: what the model says, and which tools it calls.",
        body=ResponseBody,
        answer=Response,
        streams=True,
        errors=ANSWER_ERRORS,
    ),
    Route(
        hdrs.METH_POST,
        "/v1/responses/input_tokens",
        count_input_tokens,
        "Count the tokens of a response's prompt.",
        body=ResponseBody,
        answer=InputTokens,
        errors=COUNT_ERRORS,
    ),
    Route(
        hdrs.METH_GET,
        "/v1/responses/{response_id}",
        show_response,
        "Look up a response that is kept.",
        query=ShowQuery,
        answer=Response,
        errors=(*READ_ERRORS, 400, 404),
    ),
    Route(
        hdrs.METH_DELETE,
        "/v1/responses/{response_id}",
        delete_response,
        "Forget a response that is kept.",
        answer=Deleted,
        errors=(*READ_ERRORS, 404, 429),
    ),
    Route(
        hdrs.METH_GET,
        "/v1/responses/{response_id}/input_items",
        list_input_items,
        "List what the model was given for a response that is kept.",
        query=PageQuery,
        answer=ItemList,
        errors=(*READ_ERRORS, 400, 404),
    ),
    Route(
        hdrs.METH_POST,
        "/v1/chat/completions",
        create_chat_completion,
        "Answer a conversation with the model's next turn.",
        body=ChatBody,
        answer=ChatReply,
        streams=True,
        errors=ANSWER_ERRORS,
    ),
    Route(
        hdrs.METH_POST,
        "/v1/completions",
        create_completion,
        "Continue one or more plain prompts.",
        body=CompletionBody,
        answer=TextReply,
        streams=True,
        errors=ANSWER_ERRORS,
    ),
)
_PATHS = frozenset(route.path for route in OPENAI_ROUTES) | {"/v1/models", "/v1/models/{model}"}
