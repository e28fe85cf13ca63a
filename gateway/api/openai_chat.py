"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from aiohttp import web

from gateway.api.bodies import convert_part, decode_body
from gateway.api.calls import Prompts, check_count, make_call, prompt_of
from gateway.api.choice_text import ChoiceText
from gateway.api.exchange import Asked, answer_body
from gateway.api.openai_formats import bound_of
from gateway.api.openai_models import CHAT_DECODER, CHAT_NEUTRAL, ChatBody, Message
from gateway.api.openai_options import check_fields, wishes_of
from gateway.api.openai_replies import Head
from gateway.api.openai_shapes import ChatShape
from gateway.api.openai_tools import EarlierCall, tool_fields
from gateway.api.tool_use import JsonObject, ToolUse, tool_use
from gateway.errors import InvalidRequestError
from gateway.service import Served, Service
from gateway.tenants import Tenant


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a conversation with the model's next turn."""
    return await answer_body(request, _asked)


def _asked(service: Service, tenant: Tenant, data: bytes) -> Asked:
    """Return what a body asks for. Slow with a large one: not for the event loop."""
    body = decode_body(CHAT_DECODER, data, turn=service.decoding)
    served = service.served_as(body.model)
    check_fields(body, CHAT_NEUTRAL, service.config, max_tokens=_max_tokens(body))
    check_count("messages", len(body.messages), service.config.max_messages)
    check_count("tools", len(body.tools or ()), service.config.max_tools)
    use = _tool_use(body, served)
    names = _names_of_calls(body.messages)
    messages = [_as_template_sees(each, index, names) for index, each in enumerate(body.messages)]
    with prompt_of("messages", served):
        token_ids = served.encoder.chat(
            messages,
            tools=body.tools or None,
            order_tool_keys=service.config.order_tool_keys,
            max_characters=served.max_characters,
        )
    wishes = wishes_of(
        body,
        max_tokens=_max_tokens(body),
        top_scores=_top_scores(body),
        bound=use.bound,
        shown_special_ids=use.shown_ids(served),
    )
    head = Head.of(service, served, body, prefix="chatcmpl")
    return Asked(
        make_call(service, tenant, served, Prompts("messages", [token_ids]), wishes),
        ChatShape(
            head,
            served.token_bytes,
            with_scores=bool(body.logprobs),
            new_text=partial(ChoiceText, use, service.new_id),
        ),
        bool(body.stream),
    )


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


def _names_of_calls(messages: Sequence[Message]) -> dict[str, str]:
    """Return which function each earlier call was of, by the call's id.

    Raises:
        InvalidRequestError: a call is malformed.
    """
    calls = [
        convert_part(call, EarlierCall, f"messages[{index}].tool_calls[{call_index}]")
        for index, message in enumerate(messages)
        for call_index, call in enumerate(message.tool_calls or ())
    ]
    return {call.id: call.function.name for call in calls if call.id is not None}


def _as_template_sees(
    message: Message, index: int, names: Mapping[str, str]
) -> Mapping[str, object]:
    """Return `message` as the plain mapping that chat templates know.

    A tool's result has the name of its function, which OpenAI's clients leave out and some
    templates need; `names` has it by the call's id.

    Raises:
        InvalidRequestError: it has no content, or a part that is not text.
    """
    fields: dict[str, object] = {"role": message.role, "content": _content(message, index)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    if message.role == "tool" and (called := names.get(message.tool_call_id or "")):
        fields.setdefault("name", called)
    if message.tool_calls:  # templates take an empty list for calls
        fields["tool_calls"] = [_call_as_template_sees(call) for call in message.tool_calls]
    return fields


def _call_as_template_sees(call: JsonObject) -> JsonObject:
    """Return an earlier call with its arguments, which come as JSON text, as an object.

    Templates write them as JSON themselves. What is no object in JSON stays a text.
    """
    function = call["function"]
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"], type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _content(message: Message, index: int) -> str | list[dict[str, str]]:
    if isinstance(message.content, str):
        return message.content
    param = f"messages[{index}].content"
    if message.content is None:
        if message.tool_calls:
            return ""  # a turn that only calls tools
        raise InvalidRequestError(f"{param}: a text or a list of text parts is needed", param)
    parts = []
    for part_index, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            param = f"{param}[{part_index}]"
            raise InvalidRequestError(f"{param}: only text parts can be read", param)
        parts.append({"type": "text", "text": part.text})
    return parts
