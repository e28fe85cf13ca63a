"""From the fields of an OpenAI body to what the engine is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from msgspec.structs import replace

from gateway.api.answers import ReplyShape, answer
from gateway.api.bodies import too_deep
from gateway.api.openai_formats import Bound
from gateway.api.openai_models import CacheOptions, GenerationBody
from gateway.config import GatewayConfig
from gateway.errors import ContextLengthError, InvalidRequestError, UnsupportedFieldError
from gateway.http import SERVICE, read_body
from gateway.service import Call, Served, Service
from prefixcache.errors import PromptTooLongError
from prefixcache.index import pack
from prefixcache.types import GenerationRequest, RequestId, SamplingParams

_DEFAULT_TEMPERATURE = 1.0
_TOKEN_KEY = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Tokenized prompts, the field they came from, and how long their answers may be."""

    param: str
    token_ids: Sequence[Sequence[int]]
    max_tokens: int | None  # None: as far as the context goes
    top_scores: int | None = None  # of each output token; None: no scores
    prompt_scores: int | None = None
    bound: Bound | None = None
    shown_special_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for: what the engine does, and how the answer looks."""

    call: Call
    shape: ReplyShape
    stream: bool


def check_fields(
    body: GenerationBody,
    neutral: Mapping[str, tuple[object, ...]],
    config: GatewayConfig,
    *,
    max_tokens: int | None,
) -> None:
    """Refuse what a type cannot: fields that are not built, counts over the server's limits.

    `max_tokens` is the longest answer that the body asks for; None: it does not say.

    Raises:
        UnsupportedFieldError: a field of `neutral` has a value that would change the answer.
        InvalidRequestError: too many of something.
    """
    for name, harmless in neutral.items():
        value = getattr(body, name)
        if value is not None and value not in harmless:
            raise UnsupportedFieldError(name)
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise InvalidRequestError("min_tokens: more than max_tokens", "min_tokens")
    check_count("logit_bias", len(body.logit_bias or ()), config.max_logit_bias)
    check_count("n", body.n or 1, config.max_choices)
    check_count("stop", len(stop_texts(body)), config.max_stop)
    check_count("stop_token_ids", len(body.stop_token_ids or ()), config.max_stop_token_ids)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError(
            "stream_options: only allowed when stream is true", "stream_options"
        )


async def answer_body(
    request: web.Request, ask: Callable[[Service, bytes], Asked]
) -> web.StreamResponse:
    """Read a body, have `ask` make a call of it off the event loop, and answer in its shape.

    Raises:
        InvalidRequestError: it can be read, but is nested too deeply to be written again.
    """
    service = request.app[SERVICE]
    service.served()  # before the body is read
    body = await read_body(request)
    try:
        asked = await service.encode(partial(ask, service, body))
    except RecursionError as error:
        raise too_deep(body) from error
    return await answer(request, asked.call, asked.shape, stream=asked.stream)


def stop_texts(body: GenerationBody) -> tuple[str, ...]:
    """Return the body's stop strings."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def check_count(param: str, found: int, limit: int) -> None:
    """Raise InvalidRequestError when more than `limit` of something were sent."""
    if found > limit:
        raise InvalidRequestError(f"{param}: {found} is over this server's limit of {limit}", param)


def make_call(service: Service, served: Served, body: GenerationBody, prompts: Prompts) -> Call:
    """Return what the engine is asked: each prompt `n` times, as choices of one seed.

    `max_tokens` is cut to what fits the model.

    Raises:
        InvalidRequestError: a prompt is empty, a token id is not in the vocabulary, or a grammar
            is too long.
        ContextLengthError: a prompt leaves no room for output.
    """
    _check_vocabulary("stop_token_ids", body.stop_token_ids or (), served)
    _check_grammar(prompts.bound, served)
    n_choices = body.n or 1
    cache = body.cache or CacheOptions()
    requests: list[GenerationRequest] = []
    for token_ids in prompts.token_ids:
        sampling = _sampling(body, prompts, _tokens_that_fit(token_ids, prompts, served), served)
        packed = pack(token_ids)
        requests += [
            GenerationRequest(
                request_id=RequestId(service.new_id()),
                token_ids=packed,
                sampling=replace(sampling, choice=choice_index),
                adapter=served.adapter,
                salt=body.cache_salt,
                read_cache=cache.read is not False,
                store_cache=cache.store is not False,
                priority=body.priority or 0,
                deadline_seconds=body.deadline_seconds,
            )
            for choice_index in range(n_choices)
        ]
    grammar_param = None if prompts.bound is None else prompts.bound.param
    return Call(tuple(requests), n_choices, grammar_param)


@contextmanager
def prompt_of(param: str, served: Served) -> Iterator[None]:
    """Have a prompt that is refused for its length, untokenized, be the fault of `param`.

    Raises:
        ContextLengthError: in place of the encoder's PromptTooLongError.
    """
    try:
        yield
    except PromptTooLongError as error:
        raise ContextLengthError(
            error.found_characters, served.info.max_model_tokens, param, "characters"
        ) from error


def _tokens_that_fit(token_ids: Sequence[int], prompts: Prompts, served: Served) -> int:
    if not token_ids:
        raise InvalidRequestError(f"{prompts.param}: an empty prompt", prompts.param)
    room = served.info.max_model_tokens - len(token_ids)
    if room < 1:
        raise ContextLengthError(len(token_ids), served.info.max_model_tokens, prompts.param)
    _check_vocabulary(prompts.param, token_ids, served)
    return room if prompts.max_tokens is None else min(prompts.max_tokens, room)


def _sampling(
    body: GenerationBody, prompts: Prompts, max_tokens: int, served: Served
) -> SamplingParams:
    temperature = _DEFAULT_TEMPERATURE if body.temperature is None else body.temperature
    is_greedy = body.top_p == 0  # a nucleus of nothing but the best token
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(body.min_tokens or 0, max_tokens),
        temperature=0.0 if is_greedy else temperature,
        top_p=1.0 if is_greedy or body.top_p is None else body.top_p,
        top_k=_top_k(body, served),
        min_p=body.min_p or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=tuple(_biases(body.logit_bias or {}, served)),
        seed=body.seed,
        stop=stop_texts(body),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        shown_special_ids=prompts.shown_special_ids,
        grammar=None if prompts.bound is None else prompts.bound.grammar,
        top_scores=prompts.top_scores,
        prompt_scores=prompts.prompt_scores,
    )


def _biases(biases: Mapping[str, float], served: Served) -> Iterator[tuple[int, float]]:
    """Yield each token id and its bias.

    Raises:
        InvalidRequestError: a key is no token id in plain decimal, or the model has no such token.
    """
    for key, bias in biases.items():
        if not _TOKEN_KEY.fullmatch(key):
            raise InvalidRequestError(f"logit_bias: {key[:20]!r} is no token id", "logit_bias")
        token_id = int(key)
        is_row = token_id < served.info.vocab_size
        if not is_row or served.encoder.tokenizer.spelling(token_id) is None:
            raise InvalidRequestError(f"logit_bias: no token has the id {token_id}", "logit_bias")
        yield token_id, bias


def _top_k(body: GenerationBody, served: Served) -> int | None:
    """Return how many tokens may be chosen from, None for all (also asked for as 0 or -1)."""
    if body.top_k is None or body.top_k < 1:
        return None
    return min(body.top_k, served.info.vocab_size)


def _check_grammar(bound: Bound | None, served: Served) -> None:
    """Refuse a grammar that the engine would not compile, before each choice takes it along."""
    limit_bytes = served.info.max_grammar_bytes
    if bound is not None and (found_bytes := len(bound.grammar.text.encode())) > limit_bytes:
        raise InvalidRequestError(
            f"{bound.param}: a grammar of {found_bytes} bytes; this server compiles at most"
            f" {limit_bytes}",
            bound.param,
        )


def _check_vocabulary(param: str, token_ids: Sequence[int], served: Served) -> None:
    highest = max(token_ids, default=0)
    if highest >= served.info.vocab_size:
        raise InvalidRequestError(
            f"{param}: token id {highest}; this model has token ids below {served.info.vocab_size}",
            param,
        )
