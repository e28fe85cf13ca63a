"""The routes of the Gemini dialect: answers, counts and models."""

from __future__ import annotations

from functools import partial

import msgspec
from aiohttp import hdrs, web

from gateway.api.calls import check_count, make_call
from gateway.api.choice_text import ChoiceText
from gateway.api.conversations import ReadConversation, read_conversation, scope_of
from gateway.api.exchange import Asked, answer_body, read_work
from gateway.api.gemini_caches import CACHED_CONTENTS, DIALECT, VERSIONS
from gateway.api.gemini_models import CountBody, GenerateBody, GenerationConfig, read_fields
from gateway.api.gemini_objects import CountReply, GenerateReply, ModelReply, ModelsReply
from gateway.api.gemini_options import check_config, wishes_of
from gateway.api.gemini_prompt import (
    declarations_of,
    messages_of,
    template_tool,
    tool_fields,
)
from gateway.api.gemini_replies import CandidateShape, Head
from gateway.api.served_models import named_model, served_for
from gateway.api.tool_use import tool_use
from gateway.cached_contents import CachedContent, CachedContents
from gateway.error_replies import GoogleErrorReply
from gateway.errors import InvalidRequestError
from gateway.http import EVENT_STREAM, reply
from gateway.own_answers import Scope
from gateway.routes import ANSWER_ERRORS, COUNT_ERRORS, LOOK_ERRORS, Route, in_dialect, in_versions
from gateway.served import Served
from gateway.service import Service
from gateway.tenants import Tenant
from prefixcache.types import Retain

_BESIDE = ("system_instruction", "tools", "tool_config")  # are the cached content's


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream looks."""

    alt: str | None = None  # sse: events


async def generate_content(request: web.Request) -> web.StreamResponse:
    """Answer a conversation with the model's next turn."""
    return await answer_body(request, partial(_asked, request, None))


async def stream_content(request: web.Request) -> web.StreamResponse:
    """Answer bit by bit: events with alt=sse, else the items of an array."""
    content_type = EVENT_STREAM if request.query.get("alt") == "sse" else "application/json"
    return await answer_body(request, partial(_asked, request, content_type))


async def count_tokens(request: web.Request) -> web.Response:
    """Answer with the length of a prompt; nothing is computed or kept."""
    n_tokens = await read_work(request, partial(_n_tokens, request))
    return reply(CountReply.of(n_tokens))


async def list_models(request: web.Request) -> web.Response:
    """Answer with the model and its adapters, as far as the tenant may ask them."""
    models = [ModelReply.of(served) for served in served_for(request)]
    return reply(ModelsReply(models=models))


async def show_model(request: web.Request) -> web.Response:
    """Answer with one model or adapter, if it is served."""
    return reply(ModelReply.of(named_model(request)))


def _asked(
    request: web.Request, stream_type: str | None, service: Service, tenant: Tenant, data: bytes
) -> Asked:
    """Return what a body asks for. Slow with a large one: not for the event loop."""
    body = read_fields(GenerateBody, data, turn=service.decoding)
    served = service.served_as(request.match_info["model"], tenant)
    config = body.generation_config or GenerationConfig()
    bound = check_config(config, service.config)
    cached = _cached(request.app[CACHED_CONTENTS], tenant, body, served)
    whole = _after(cached, body)
    use = tool_use(tool_fields(declarations_of(whole), whole.tool_config, bound), served)
    wishes = wishes_of(
        config,
        use,
        shown_special_ids=use.shown_ids(served),
        salt=body.cache_salt,
        retain=_retain(cached, service),
    )
    scope = scope_of(tenant, served, body.cache_salt)
    read = _read(service, served, cached, body, scope)
    call = make_call(service, tenant, served, read.prompts, wishes)
    head = Head(
        id=service.new_id(),
        model=served.name,
        in_events=stream_type == EVENT_STREAM,
        with_scores=bool(config.response_logprobs),
        tokens=served.token_bytes,
    )
    shape = CandidateShape(head, partial(ChoiceText, use, service.new_id))
    return Asked(call, shape, stream_type is not None, stream_type or EVENT_STREAM)


def _n_tokens(request: web.Request, service: Service, tenant: Tenant, data: bytes) -> int:
    body = read_fields(CountBody, data, turn=service.decoding)
    served = service.served_as(request.match_info["model"], tenant)
    asked = body.generate_content_request or GenerateBody(contents=body.contents)
    cached = _cached(request.app[CACHED_CONTENTS], tenant, asked, served)
    scope = scope_of(tenant, served, asked.cache_salt)
    return _read(service, served, cached, asked, scope).n_tokens


def _cached(
    caches: CachedContents, tenant: Tenant, body: GenerateBody, served: Served
) -> CachedContent | None:
    """Return the cached content that a body builds on, if it names one.

    Raises:
        CachedContentNotFoundError: it is not there, or not any more.
        InvalidRequestError: it is another model's, or something stands beside it that it has.
    """
    if body.cached_content is None:
        return None
    cached = caches.get(tenant.name, body.cached_content.removeprefix("cachedContents/"))
    for name in _BESIDE:
        if getattr(body, name) is not None:
            raise InvalidRequestError(
                "cachedContent: systemInstruction, tools and toolConfig belong to the cached"
                " content; leave them out here",
                "cachedContent",
            )
    if cached.model != served.name:
        raise InvalidRequestError(
            f"cachedContent: made for the model {cached.model!r}, not {served.name!r}",
            "cachedContent",
        )
    return cached


def _after(cached: CachedContent | None, body: GenerateBody) -> GenerateBody:
    """Return `body` with what was cached, if anything is, before its own contents."""
    if cached is None:
        return body
    fields = cached.fields
    return msgspec.structs.replace(
        body,
        contents=[*(fields.contents or ()), *(body.contents or ())],
        system_instruction=fields.system_instruction,
        tools=fields.tools,
        tool_config=fields.tool_config,
    )


def _retain(cached: CachedContent | None, service: Service) -> tuple[Retain, ...]:
    """Return what keeps the cached content until it expires, and no longer."""
    if cached is None:
        return ()
    seconds = cached.expires - service.wall_clock()
    return (Retain(cached.n_tokens, seconds),) if seconds > 0 and cached.n_tokens else ()


def _read(
    service: Service,
    served: Served,
    cached: CachedContent | None,
    body: GenerateBody,
    scope: Scope,
) -> ReadConversation:
    """Return a body's prompt. It begins with what was cached, in the tokens that that has."""
    whole = _after(cached, body)
    check_count("contents", len(whole.contents or ()), service.config.max_messages)
    if not whole.contents:
        raise InvalidRequestError("contents: at least one is needed", "contents")
    declared = declarations_of(whole)
    check_count("tools", len(declared), service.config.max_tools)
    messages = messages_of(whole)
    return read_conversation(
        messages,
        [template_tool(each) for each in declared],
        service=service,
        served=served,
        param="contents",
        scope=scope,
        goes_on=messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1],
        begins_with=b"" if cached is None else cached.token_ids,
    )


GEMINI_ROUTES = in_dialect(
    DIALECT,
    *in_versions(
        VERSIONS,
        (
            Route(
                hdrs.METH_POST,
                "/models/{model:.+}:generateContent",
                generate_content,
                "Answer a conversation with the model's next turn.",
                body=GenerateBody,
                answer=GenerateReply,
                errors=ANSWER_ERRORS,
            ),
            Route(
                hdrs.METH_POST,
                "/models/{model:.+}:streamGenerateContent",
                stream_content,
                "Answer bit by bit: events with alt=sse, else the items of an array.",
                body=GenerateBody,
                query=StreamQuery,
                answer=list[GenerateReply],
                streams=True,
                errors=ANSWER_ERRORS,
            ),
            Route(
                hdrs.METH_POST,
                "/models/{model:.+}:countTokens",
                count_tokens,
                "Count the tokens of a prompt.",
                body=CountBody,
                answer=CountReply,
                errors=COUNT_ERRORS,
                operation="count_content_tokens",
            ),
        ),
    ),
    Route(
        hdrs.METH_GET,
        "/v1beta/models",
        list_models,
        "List the model and its adapters.",
        answer=ModelsReply,
        errors=LOOK_ERRORS,
        operation="list_models_v1beta",
    ),
    Route(
        hdrs.METH_GET,
        "/v1beta/models/{model:.+}",
        show_model,
        "Tell about one model or adapter.",
        answer=ModelReply,
        errors=(*LOOK_ERRORS, 404),
        operation="show_model_v1beta",
    ),
    error=GoogleErrorReply,
)
