"""The routes of the Anthropic dialect: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec
from aiohttp import hdrs, web

from gateway.api.anthropic_caching import Kept, breakpoints_of, retained
from gateway.api.anthropic_models import (
    MESSAGES_DECODER,
    PROMPT_DECODER,
    MessagesBody,
    PromptBody,
    ToolChoice,
)
from gateway.api.anthropic_prompt import Breakpoint, Conversation, conversation
from gateway.api.anthropic_published import with_published
from gateway.api.anthropic_replies import Diagnostics, MessageReply, MissReason, TokenCount
from gateway.api.anthropic_shapes import Head, MessageShape
from gateway.api.bodies import decode_body
from gateway.api.calls import check_count, make_call
from gateway.api.choice_text import ChoiceText
from gateway.api.conversations import ReadConversation, read_conversation, scope_of
from gateway.api.exchange import Asked, answer_body, read_work
from gateway.api.tool_use import Function, ToolFields, ToolUse, tool_use
from gateway.api.wishes import Bound, Wishes
from gateway.envelopes import OVERLOADED_STATUS
from gateway.error_replies import AnthropicErrorReply
from gateway.errors import InvalidRequestError, UnsupportedFieldError
from gateway.fingerprints import Fingerprint, Fingerprints, Prompt
from gateway.http import reply
from gateway.own_answers import Scope
from gateway.published import PublishedPrompt
from gateway.routes import ANSWER_ERRORS, COUNT_ERRORS, Route, in_dialect
from gateway.served import Served
from gateway.service import Service
from gateway.tenants import Tenant
from prefixcache.types import Grammar, GrammarKind

_CHOICES: Mapping[str, Literal["none", "auto", "required"]] = {
    "none": "none",
    "auto": "auto",
    "any": "required",
    "tool": "required",
}
FINGERPRINTS: web.AppKey[Fingerprints] = web.AppKey("fingerprints", Fingerprints)
DIALECT = "anthropic"


async def create_message(request: web.Request) -> web.StreamResponse:
    """Answer a conversation with the assistant's next turn."""
    return await answer_body(request, partial(_asked, request.app[FINGERPRINTS]))


async def count_tokens(request: web.Request) -> web.Response:
    """Answer with the length of a prompt; nothing is computed or kept."""
    n_tokens = await read_work(request, _n_tokens)
    return reply(TokenCount(input_tokens=n_tokens))


def _n_tokens(service: Service, tenant: Tenant, data: bytes) -> int:
    body = decode_body(PROMPT_DECODER, data, turn=service.decoding)
    served = service.served_as(body.model, tenant)
    body, published = with_published(service, tenant, body)
    made = _conversation(service, body, published)
    scope = scope_of(tenant, served, body.cache_salt)
    return _read(service, served, made, [], scope).n_tokens


def _asked(fingerprints: Fingerprints, service: Service, tenant: Tenant, data: bytes) -> Asked:
    """Return what a body asks for. Slow with a large one: not for the event loop."""
    body = decode_body(MESSAGES_DECODER, data, turn=service.decoding)
    served = service.served_as(body.model, tenant)
    check_count("stop_sequences", len(body.stop_sequences or ()), service.config.max_stop)
    body, published = with_published(service, tenant, body)
    made = _conversation(service, body, published)
    use = _tool_use(body, served)
    breakpoints = breakpoints_of(made, body.cache_control)
    scope = scope_of(tenant, served, body.cache_salt)
    prompt = _read(service, served, made, breakpoints, scope)
    retains, kept = retained(breakpoints, prompt.fixed_tokens, served.info.block_size_tokens)
    wishes = Wishes(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=tuple(body.stop_sequences or ()),
        shown_special_ids=use.shown_ids(served),
        bound=use.bound,
        salt=body.cache_salt,
        retain=retains,
    )
    call = make_call(service, tenant, served, prompt.prompts, wishes)
    answer_id = f"msg_{service.new_id()}"
    others = [body.tool_choice, body.thinking, body.output_config]
    compared = Prompt(served.name, made.system, made.tools, others, made.turns)
    head = Head(
        id=answer_id,
        model=served.name,
        kept=kept if service.tenancy.settings.engine.prefix_cache else Kept(),
        is_cut=call.requests[0].sampling.max_tokens < body.max_tokens,
        diagnose=_diagnosis(fingerprints, tenant, body, compared),
    )
    fingerprints.put(tenant.name, answer_id, compared.fingerprint(prompt.n_tokens))
    shape = MessageShape(head, ChoiceText(use, service.new_id))
    return Asked(call, shape, bool(body.stream))


def _conversation(
    service: Service, body: PromptBody, published: PublishedPrompt | None
) -> Conversation:
    """Return what a template is given. Raises InvalidRequestError: something cannot be read."""
    if body.container is not None:
        raise UnsupportedFieldError("container")
    if body.mcp_servers:
        raise UnsupportedFieldError("mcp_servers")
    check_count("messages", len(body.messages), service.config.max_messages)
    check_count("tools", len(body.tools or ()), service.config.max_tools)
    made = conversation(body, keep_billing_line=service.config.keep_billing_line)
    if published is not None:
        made.tools = list(published.tools)
    return made


def _read(
    service: Service,
    served: Served,
    made: Conversation,
    breakpoints: Sequence[Breakpoint],
    scope: Scope,
) -> ReadConversation:
    return read_conversation(
        made.messages,
        made.tools,
        service=service,
        served=served,
        param="messages",
        scope=scope,
        marks=[each.mark for each in breakpoints],
        goes_on=made.goes_on,
    )


def _tool_use(body: MessagesBody, served: Served) -> ToolUse:
    asked = body.tool_choice or ToolChoice(type="auto")
    if asked.type == "tool" and asked.name is None:
        raise InvalidRequestError("tool_choice.name: missing", "tool_choice.name")
    fields = ToolFields(
        functions={
            tool.name: Function(tool.name, tool.input_schema, bool(tool.strict))
            for tool in body.tools or ()
        },
        choice=_CHOICES[asked.type],
        only=[asked.name] if asked.type == "tool" and asked.name is not None else (),
        is_single=asked.type == "tool" or bool(asked.disable_parallel_tool_use),
        bound=_bound(body),
    )
    return tool_use(fields, served)


def _bound(body: PromptBody) -> Bound | None:
    if body.output_config is None or body.output_config.format is None:
        return None
    text = msgspec.json.encode(body.output_config.format.schema).decode()
    return Bound("output_config.format", Grammar(GrammarKind.JSON_SCHEMA, text, is_lenient=True))


def _diagnosis(
    fingerprints: Fingerprints, tenant: Tenant, body: MessagesBody, prompt: Prompt
) -> Callable[[int], Diagnostics | None] | None:
    """Return what tells, from the tokens that were cached, why not more were; None: unasked."""
    if body.diagnostics is None:
        return None
    if body.diagnostics.previous_message_id is None:
        return lambda cached_tokens: None
    earlier = fingerprints.get(tenant.name, body.diagnostics.previous_message_id)
    if earlier is None:
        reason = Diagnostics(MissReason("previous_message_not_found"))
        return lambda cached_tokens: reason
    return partial(_told, prompt.change_since(earlier), earlier)


def _told(change: str | None, earlier: Fingerprint, cached_tokens: int) -> Diagnostics | None:
    if change is None:
        return None
    if change == "others":
        return Diagnostics(MissReason("unavailable"))
    missed = max(0, earlier.prompt_tokens - cached_tokens)
    return Diagnostics(MissReason(f"{change}_changed", missed))


ANTHROPIC_ROUTES = in_dialect(
    DIALECT,
    Route(
        hdrs.METH_POST,
        "/v1/messages",
        create_message,
        "Answer a conversation with the assistant's next turn.",
        body=MessagesBody,
        answer=MessageReply,
        streams=True,
        errors=(*ANSWER_ERRORS, OVERLOADED_STATUS),
    ),
    Route(
        hdrs.METH_POST,
        "/v1/messages/count_tokens",
        count_tokens,
        "Count the tokens of a message's prompt.",
        body=PromptBody,
        answer=TokenCount,
        errors=(*COUNT_ERRORS, OVERLOADED_STATUS),
        operation="count_message_tokens",
    ),
    error=AnthropicErrorReply,
)
