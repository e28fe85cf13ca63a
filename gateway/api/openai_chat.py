"""POST /v1/chat/completions."""

from __future__ import annotations

from functools import partial

from aiohttp import web
from msgspec.structs import replace

from gateway.api.bodies import decode_body
from gateway.api.calls import check_count, make_call, with_options
from gateway.api.choice_text import ChoiceText
from gateway.api.conversations import scope_of
from gateway.api.exchange import Asked, answer_body
from gateway.api.named_prompts import prompt_named, refuse_beside_prompt
from gateway.api.openai_cache import plan_cache
from gateway.api.openai_formats import bound_of
from gateway.api.openai_messages import as_templates_see, breakpoints_in
from gateway.api.openai_models import CHAT_DECODER, CHAT_NEUTRAL, ChatBody
from gateway.api.openai_options import check_fields, wishes_of
from gateway.api.openai_prompt import read_chat
from gateway.api.openai_replies import Head
from gateway.api.openai_shapes import ChatShape
from gateway.api.openai_tools import tool_fields
from gateway.api.tool_use import ToolUse, tool_use
from gateway.errors import InvalidRequestError
from gateway.published import PublishedPrompt
from gateway.served import Served
from gateway.service import Service
from gateway.tenants import Tenant


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a conversation with the model's next turn."""
    return await answer_body(request, _asked)


def _asked(service: Service, tenant: Tenant, data: bytes) -> Asked:
    """Return what a body asks for. Slow with a large one: not for the event loop."""
    body = decode_body(CHAT_DECODER, data, turn=service.decoding)
    served = with_options(service.served_as(body.model, tenant), body.chat_template_kwargs)
    check_fields(body, CHAT_NEUTRAL, service.config, max_tokens=_max_tokens(body))
    check_count("messages", len(body.messages), service.config.max_messages)
    check_count("tools", len(body.tools or ()), service.config.max_tools)
    published = _published(service, tenant, body)
    if published is not None:
        body = replace(body, tools=list(published.tools))
    use = _tool_use(body, served)
    prompt = read_chat(
        as_templates_see(body.messages),
        body.tools or (),
        breakpoints_in(body.messages),
        service=service,
        served=served,
        scope=scope_of(tenant, served, body.cache_salt),
        param="messages",
        published=published,
    )
    wishes = wishes_of(
        body,
        max_tokens=_max_tokens(body),
        top_scores=_top_scores(body),
        bound=use.bound,
        shown_special_ids=use.shown_ids(served),
        plan=plan_cache(body.prompt_cache_options, prompt.breakpoints, n_tokens=prompt.n_tokens),
    )
    head = Head.of(service, served, body, prefix="chatcmpl")
    return Asked(
        make_call(service, tenant, served, prompt.prompts, wishes),
        ChatShape(
            head,
            served.token_bytes,
            with_scores=bool(body.logprobs),
            new_text=partial(ChoiceText, use, service.new_id),
        ),
        bool(body.stream),
    )


def _published(service: Service, tenant: Tenant, body: ChatBody) -> PublishedPrompt | None:
    if body.prompt is None:
        return None
    found = prompt_named(service, tenant, body.prompt)
    roles = (message.role for message in body.messages)
    refuse_beside_prompt(roles, {"tools": body.tools}, "messages")
    return found


def _tool_use(body: ChatBody, served: Served) -> ToolUse:
    fields = tool_fields(
        body.tools or (),
        body.tool_choice or "auto",
        is_parallel=body.parallel_tool_calls is not False,
        bound=bound_of(body),
    )
    return tool_use(fields, served)


def _top_scores(body: ChatBody) -> int | None:
    """Return how many tokens each place's scores have, or None for no scores at all."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequestError("top_logprobs: needs logprobs to be true", "top_logprobs")
    return None


def _max_tokens(body: ChatBody) -> int | None:
    """Return the answer's limit: the newer field wins, neither means as far as the context goes."""
    if body.max_completion_tokens is not None:
        return body.max_completion_tokens
    if body.max_tokens == 0:
        raise InvalidRequestError("max_tokens: must be at least 1", "max_tokens")
    return body.max_tokens
