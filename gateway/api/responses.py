"""POST /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from aiohttp import web
from msgspec.structs import replace

from gateway.api.bodies import decode_body
from gateway.api.calls import check_count, make_call
from gateway.api.choice_text import ChoiceText
from gateway.api.conversations import scope_of
from gateway.api.exchange import Asked, answer_body
from gateway.api.named_prompts import (
    NamedPrompt,
    prompt_named,
    refuse_beside_prompt,
    version_of,
)
from gateway.api.openai_cache import CachePlan, plan_cache
from gateway.api.openai_formats import FormatFields, NamedSchema, ResponseFormat, bound_of
from gateway.api.openai_models import CacheOptions
from gateway.api.openai_options import refuse_unbuilt
from gateway.api.openai_prompt import ReadChat, read_chat
from gateway.api.responses_input import Conversation, conversation, items_of, named
from gateway.api.responses_kept import Keeper, KeptResponses
from gateway.api.responses_models import (
    RESPONSE_DECODER,
    RESPONSE_NEUTRAL,
    InputItem,
    ResponseBody,
    ResponseCacheOptions,
)
from gateway.api.responses_replies import Response
from gateway.api.responses_shape import ResponseShape
from gateway.api.responses_tools import flat_tools, response_tools, shown_tools
from gateway.api.tool_use import ToolUse, tool_use
from gateway.api.wishes import Bound, Wishes
from gateway.errors import InvalidRequestError, UnsupportedFieldError
from gateway.published import PublishedPrompt
from gateway.served import Served
from gateway.service import Service
from gateway.tenants import Tenant

KEPT_RESPONSES: web.AppKey[KeptResponses] = web.AppKey("kept_responses", KeptResponses)

_SCORES = "message.output_text.logprobs"


async def create_response(request: web.Request) -> web.StreamResponse:
    """Answer a conversation with items: what the model says, and which functions it calls."""
    return await answer_body(request, partial(_asked, request.app[KEPT_RESPONSES]))


@dataclass(frozen=True, slots=True)
class ReadBody:
    """What a body comes to before the model sees it."""

    body: ResponseBody
    served: Served
    items: tuple[InputItem, ...]  # the conversation that it goes on from, and its own
    use: ToolUse
    prompt: ReadChat
    n_bytes: int  # of the items, about

    @property
    def options(self) -> ResponseCacheOptions:
        """What it says of the cache."""
        return self.body.prompt_cache_options or ResponseCacheOptions()


def read_response_body(
    kept: KeptResponses, service: Service, tenant: Tenant, data: bytes
) -> ReadBody:
    """Return what a body comes to. Slow with a large one: not for the event loop.

    Raises:
        GatewayError: something in it cannot be used.
    """
    body = decode_body(RESPONSE_DECODER, data, turn=service.decoding)
    served = service.served_as(body.model, tenant)
    refuse_unbuilt(body, RESPONSE_NEUTRAL)
    check_count("tools", len(body.tools or ()), service.config.max_tools)
    items, n_bytes = items_of(body.input), len(data)
    if body.previous_response_id is not None:
        previous = kept.previous(tenant.name, body.previous_response_id)
        items, n_bytes = previous.conversation + items, n_bytes + previous.conversation_bytes
    check_count("input", len(items), service.config.max_messages)
    published = _published(service, tenant, body, items)
    if published is not None:
        body = replace(body, tools=flat_tools(published.tools))
    use = _tool_use(body, served)
    read = conversation(body.instructions, items)
    prompt = _prompt(read, body, published, served, service, tenant)
    return ReadBody(body, served, items, use, prompt, n_bytes)


def _asked(kept: KeptResponses, service: Service, tenant: Tenant, data: bytes) -> Asked:
    read = read_response_body(kept, service, tenant, data)
    body, served = read.body, read.served
    plan = plan_cache(read.options, read.prompt.breakpoints, n_tokens=read.prompt.n_tokens)
    wishes = _wishes(read, plan)
    call = make_call(service, tenant, served, read.prompt.prompts, wishes)
    begun = Response.begun(
        body,
        id=f"resp_{service.new_id()}",
        created_at=int(service.wall_clock()),
        model=served.name,
    )
    keeper = Keeper(
        kept=kept,
        tenant=tenant.name,
        context=tuple(named(read.items, service.new_id)),
        model=served.name,
        tools=msgspec.json.encode(begun.tools),
        prompt=call.requests[0].token_ids,
        context_bytes=read.n_bytes,
    )
    compared = read.options.comparison_response_id
    shape = ResponseShape(
        begun,
        ChoiceText(read.use, service.new_id),
        served.token_bytes,
        new_id=service.new_id,
        clock=service.wall_clock,
        keep=keeper.keep,
        diagnose=None if compared is None else partial(keeper.diagnosis, compared),
        retain=wishes.retain,
        with_scores=wishes.top_scores is not None,
        is_silent=bool(read.options.prewarm),
        is_padded=bool(body.stream_options and body.stream_options.include_obfuscation),
    )
    return Asked(call, shape, bool(body.stream))


def _published(
    service: Service, tenant: Tenant, body: ResponseBody, items: Sequence[InputItem]
) -> PublishedPrompt | None:
    asked = body.prompt
    if asked is None:
        return None
    if asked.variables:
        raise UnsupportedFieldError("prompt.variables")
    version = asked.version
    if isinstance(version, str):
        version = version_of(asked.id, version)
    found = prompt_named(service, tenant, NamedPrompt(name=asked.id, version=version))
    roles = (item.role or "" for item in items)
    fields = {"instructions": body.instructions, "tools": body.tools}
    refuse_beside_prompt(roles, fields, "input")
    return found


def _tool_use(body: ResponseBody, served: Served) -> ToolUse:
    fields = response_tools(
        body.tools or (),
        body.tool_choice,
        is_parallel=body.parallel_tool_calls is not False,
        bound=_bound(body),
    )
    return tool_use(fields, served)


def _bound(body: ResponseBody) -> Bound | None:
    """Return what the answer's text must follow; the field is flatter than chat's."""
    if body.text is None or body.text.format is None:
        return None
    asked, param = body.text.format, "text.format"
    named_schema = None
    if asked.type == "json_schema":
        if asked.name is None or asked.schema is None:
            raise InvalidRequestError(f"{param}: json_schema needs a name and a schema", param)
        named_schema = NamedSchema(name=asked.name, schema=asked.schema, strict=asked.strict)
    chat_format = ResponseFormat(type=asked.type, json_schema=named_schema)
    bound = bound_of(FormatFields(response_format=chat_format))
    return None if bound is None else Bound(param, bound.grammar)


def _prompt(
    read: Conversation,
    body: ResponseBody,
    published: PublishedPrompt | None,
    served: Served,
    service: Service,
    tenant: Tenant,
) -> ReadChat:
    if not read.messages:
        raise InvalidRequestError("input: there is nothing to answer", "input")
    shown = shown_tools(body.tools or ()) if published is None else published.tools
    return read_chat(
        read.messages,
        shown,
        read.breakpoints,
        service=service,
        served=served,
        scope=scope_of(tenant, served, body.cache_salt),
        param="input",
        published=published,
    )


def _wishes(read: ReadBody, plan: CachePlan) -> Wishes:
    body, cache = read.body, read.body.cache or CacheOptions()
    wants_scores = _SCORES in (body.include or ()) or bool(body.top_logprobs)
    return Wishes(
        max_tokens=0 if read.options.prewarm else body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        shown_special_ids=read.use.shown_ids(read.served),
        bound=read.use.bound,
        top_scores=(body.top_logprobs or 0) if wants_scores else None,
        salt=body.cache_salt,
        read_cache=plan.is_used and cache.read is not False,
        store_cache=plan.is_used and cache.store is not False,
        retain=plan.retain if cache.store is not False else (),
        priority=body.priority or 0,
        deadline_seconds=body.deadline_seconds,
    )
