"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from gateway.api.answers import answer
from gateway.api.bodies import decode_body
from gateway.api.openai_models import COMPLETION_DECODER, COMPLETION_NEUTRAL, CompletionBody
from gateway.api.openai_options import Prompts, check_fields, make_call
from gateway.api.openai_replies import Head, TextShape
from gateway.errors import InvalidRequestError, UnsupportedFieldError
from gateway.http import SERVICE, read_body
from gateway.service import Served, Service

_DEFAULT_MAX_TOKENS = 16  # as OpenAI's


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Continue one or more plain prompts."""
    service = request.app[SERVICE]
    service.served()  # before the body is read
    body = decode_body(COMPLETION_DECODER, await read_body(request))
    served = service.served_as(body.model)
    check_fields(body, COMPLETION_NEUTRAL, service.config)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UnsupportedFieldError("best_of")
    prompts = _prompts(body, service.config.max_prompts)
    token_ids = [await _encoded(service, served, prompt) for prompt in prompts]
    max_tokens = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    call = make_call(service, served, body, Prompts("prompt", token_ids, max_tokens))
    options = body.stream_options
    head = Head(
        id=f"cmpl-{service.new_id()}",
        created=int(service.wall_clock()),
        model=served.name,
        include_usage=bool(options and options.include_usage),
    )
    return await answer(request, call, TextShape(head), stream=bool(body.stream))


async def _encoded(service: Service, served: Served, prompt: str | Sequence[int]) -> Sequence[int]:
    return await service.encode_text(served, prompt) if isinstance(prompt, str) else prompt


def _prompts(body: CompletionBody, limit: int) -> Sequence[str | Sequence[int]]:
    """Return the prompts in `body`: a text, texts, token ids, or lists of token ids.

    Raises:
        InvalidRequestError: there is none, there are too many, or kinds are mixed.
    """
    if isinstance(body.prompt, str):
        return [body.prompt]
    token_ids = [item for item in body.prompt if isinstance(item, int)]
    if token_ids and len(token_ids) == len(body.prompt):
        return [token_ids]
    prompts = [item for item in body.prompt if not isinstance(item, int)]
    if token_ids or len({isinstance(prompt, str) for prompt in prompts}) > 1:
        raise InvalidRequestError("prompt: a list must hold one kind of thing", "prompt")
    if not prompts:
        raise InvalidRequestError("prompt: an empty prompt", "prompt")
    if len(prompts) > limit:
        raise InvalidRequestError(
            f"prompt: {len(prompts)} prompts are over this server's limit of {limit}", "prompt"
        )
    return prompts
