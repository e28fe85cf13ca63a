"""POST /v1/completions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

import msgspec
from aiohttp import web

from gateway.api.bodies import decode_body
from gateway.api.calls import Prompts, check_count, make_call, prompt_of
from gateway.api.exchange import Asked, answer_body
from gateway.api.openai_formats import bound_of
from gateway.api.openai_models import (
    COMPLETION_DECODER,
    COMPLETION_NEUTRAL,
    PROMPT_DECODER,
    CompletionBody,
    Prompt,
)
from gateway.api.openai_options import check_fields, wishes_of
from gateway.api.openai_replies import Head
from gateway.api.openai_shapes import Echo, TextShape
from gateway.config import GatewayConfig
from gateway.errors import ContextLengthError, InvalidRequestError, UnsupportedFieldError
from gateway.served import Served
from gateway.service import Service
from gateway.tenants import Tenant

_DEFAULT_MAX_TOKENS = 16  # as OpenAI's
_TOKEN_IDS = re.compile(rb"\s*\[\s*(?:(?P<several>\[)|[0-9])")  # how token ids begin


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Continue one or more plain prompts."""
    return await answer_body(request, _asked)


def _asked(service: Service, tenant: Tenant, data: bytes) -> Asked:
    """Return what a body asks for. Slow with a large one: not for the event loop."""
    body = decode_body(COMPLETION_DECODER, data, turn=service.decoding)
    served = service.served_as(body.model, tenant)
    check_fields(body, COMPLETION_NEUTRAL, service.config, max_tokens=body.max_tokens)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UnsupportedFieldError("best_of")
    _check_size(body.prompt, served, service.config)
    prompt = decode_body(PROMPT_DECODER, body.prompt, turn=service.decoding, field="prompt")
    parts = _prompts(prompt, served, service.config)
    token_ids = [_token_ids(part, served) for part in parts]
    wishes = wishes_of(
        body,
        max_tokens=_max_tokens(body),
        top_scores=body.logprobs,
        prompt_scores=body.logprobs if body.echo else None,
        bound=bound_of(body),
    )
    call = make_call(service, tenant, served, Prompts("prompt", token_ids), wishes)
    echoes = [
        _echo(part, ids, served)
        for part, ids in zip(parts, token_ids, strict=True)
        for _ in range(body.n or 1)
    ]
    shape = TextShape(
        Head.of(service, served, body, prefix="cmpl"),
        served.token_bytes,
        with_scores=body.logprobs is not None,
        echoes=echoes if body.echo else None,
    )
    return Asked(call, shape, bool(body.stream))


def _max_tokens(body: CompletionBody) -> int:
    """Return the answer's limit; 0 asks for the prompt alone."""
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequestError("max_tokens: must be at least 1 without echo", "max_tokens")
    return _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens


def _echo(prompt: str | Sequence[int], token_ids: Sequence[int], served: Served) -> Echo:
    if isinstance(prompt, str):
        return Echo(prompt, token_ids[0])
    text = served.encoder.tokenizer.decode(prompt, skip_special_tokens=False)
    return Echo(text, token_ids[0])


def _token_ids(prompt: str | Sequence[int], served: Served) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    with prompt_of("prompt", served):
        return served.encoder.text(prompt, max_characters=served.max_characters)


def _prompts(
    prompt: Prompt, served: Served, config: GatewayConfig
) -> Sequence[str | Sequence[int]]:
    """Return the prompts in `prompt`: a text, texts, token ids, or lists of token ids.

    Raises:
        InvalidRequestError: there is none, there are too many, or kinds are mixed.
    """
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if not kinds:
        raise InvalidRequestError("prompt: an empty prompt", "prompt")
    if len(kinds) > 1:
        raise InvalidRequestError("prompt: a list must hold one kind of thing", "prompt")
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    check_count("prompt", len(prompt), config.max_prompts)
    return cast("list[str] | list[list[int]]", prompt)


def _check_size(prompt: msgspec.Raw, served: Served, config: GatewayConfig) -> None:
    """Refuse more token ids than fit by counting commas, before any is made an object.

    Raises:
        ContextLengthError: there are too many.
    """
    text = memoryview(prompt).tobytes()
    found = _TOKEN_IDS.match(text)
    if found is None:
        return
    n_prompts = config.max_prompts if found["several"] else 1
    n_tokens = text.count(b",") + 1
    if n_tokens > n_prompts * served.info.max_model_tokens:
        raise ContextLengthError(n_tokens, served.info.max_model_tokens, "prompt")
