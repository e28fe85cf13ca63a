"""POST /tokenize and /detokenize, as vLLM has them: what a model makes of a text or a chat."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import hdrs, web
from msgspec import Meta

from gateway.api.bodies import decode_body
from gateway.api.calls import check_count, check_vocabulary, prompt_of, with_options
from gateway.api.exchange import read_work
from gateway.api.openai_messages import as_templates_see
from gateway.api.openai_models import Message, TemplateOptions, TokenNumber
from gateway.api.openai_options import refuse_unbuilt
from gateway.api.tool_use import JsonObject
from gateway.errors import InvalidRequestError
from gateway.http import json_response
from gateway.routes import COUNT_ERRORS, Route, in_dialect
from gateway.served import Served
from gateway.service import Service
from gateway.tenants import Tenant

DIALECT = "vllm"


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """A text, or a conversation."""

    model: str | None = None  # the one that is served
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[JsonObject] | None = None
    add_special_tokens: bool | None = None  # of a text: true
    add_generation_prompt: bool | None = None  # of a conversation: true
    return_token_strs: bool | None = None

    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: TemplateOptions | None = None


class TokenizeReply(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens, and how many would fit."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids."""

    model: str | None = None
    tokens: list[TokenNumber]


class DetokenizeReply(msgspec.Struct, frozen=True, kw_only=True):
    """What they spell."""

    prompt: str


_NEUTRAL = {
    "continue_final_message": (False,),
    "chat_template": (),
}
_TOKENIZE_DECODER = msgspec.json.Decoder(TokenizeBody)
_DETOKENIZE_DECODER = msgspec.json.Decoder(DetokenizeBody)


async def tokenize(request: web.Request) -> web.Response:
    """Answer with the tokens of a text or a conversation; nothing is generated or cached."""
    return json_response(await read_work(request, _tokenized))


async def detokenize(request: web.Request) -> web.Response:
    """Answer with the text of some tokens, special ones included."""
    return json_response(await read_work(request, _detokenized))


def _tokenized(service: Service, tenant: Tenant, data: bytes) -> bytes:
    body = decode_body(_TOKENIZE_DECODER, data, turn=service.decoding)
    served = _served(service, tenant, body.model)
    refuse_unbuilt(body, _NEUTRAL)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("prompt: either it or messages is needed", "prompt")
    ids = _text_ids(body, served) if body.messages is None else _chat_ids(body, service, served)
    names = served.token_bytes.text
    reply = TokenizeReply(
        count=len(ids),
        max_model_len=served.info.max_model_tokens,
        tokens=ids,
        token_strs=[names(token_id) for token_id in ids] if body.return_token_strs else None,
    )
    return msgspec.json.encode(reply)


def _text_ids(body: TokenizeBody, served: Served) -> list[int]:
    with prompt_of("prompt", served):
        return served.encoder.text(
            body.prompt or "",
            max_characters=served.max_characters,
            add_special_tokens=body.add_special_tokens is not False,
        )


def _chat_ids(body: TokenizeBody, service: Service, served: Served) -> list[int]:
    messages, config = body.messages or [], service.config
    check_count("messages", len(messages), config.max_messages)
    check_count("tools", len(body.tools or ()), config.max_tools)
    if body.add_special_tokens:
        param = "add_special_tokens"
        raise InvalidRequestError(f"{param}: the chat template adds what messages need", param)
    served = with_options(served, body.chat_template_kwargs)
    with prompt_of("messages", served):
        return served.encoder.chat(
            as_templates_see(messages),
            tools=body.tools or None,
            order_tool_keys=config.order_tool_keys,
            add_generation_prompt=body.add_generation_prompt is not False,
            max_characters=served.max_characters,
        )


def _detokenized(service: Service, tenant: Tenant, data: bytes) -> bytes:
    body = decode_body(_DETOKENIZE_DECODER, data, turn=service.decoding)
    served = _served(service, tenant, body.model)
    check_vocabulary("tokens", body.tokens, served)
    text = served.encoder.tokenizer.decode(body.tokens, skip_special_tokens=False)
    return msgspec.json.encode(DetokenizeReply(prompt=text))


def _served(service: Service, tenant: Tenant, model: str | None) -> Served:
    served = service.served()
    return service.served_as(served.name if model is None else model, tenant)


TOKEN_ROUTES = in_dialect(
    DIALECT,
    Route(
        hdrs.METH_POST,
        "/tokenize",
        tokenize,
        "Give the tokens of a text or a conversation.",
        body=TokenizeBody,
        answer=TokenizeReply,
        errors=COUNT_ERRORS,
    ),
    Route(
        hdrs.METH_POST,
        "/detokenize",
        detokenize,
        "Give the text of some tokens.",
        body=DetokenizeBody,
        answer=DetokenizeReply,
        errors=COUNT_ERRORS,
    ),
)
