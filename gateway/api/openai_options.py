"""From the fields of an OpenAI body to what the engine is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.api.openai_models import CacheOptions, GenerationBody
from gateway.config import GatewayConfig
from gateway.errors import ContextLengthError, InvalidRequestError, UnsupportedFieldError
from gateway.service import Call, Served, Service
from prefixcache.index.tokens import pack
from prefixcache.types import GenerationRequest, RequestId, SamplingParams

_SEEDS = 2**63  # seeds are taken modulo this, so that seed + i is always one
_DEFAULT_TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class Prompts:
    """Tokenized prompts, the field they came from, and how long their answers may be."""

    param: str
    token_ids: Sequence[Sequence[int]]
    max_tokens: int | None  # None: as far as the context goes


def check_fields(
    body: GenerationBody, neutral: Mapping[str, tuple[object, ...]], config: GatewayConfig
) -> None:
    """Refuse what a type cannot: fields that are not built, counts over the server's limits.

    Raises:
        UnsupportedFieldError: a field of `neutral` has a value that would change the answer.
        InvalidRequestError: too many of something.
    """
    for name, harmless in neutral.items():
        value = getattr(body, name)
        if value is not None and value not in harmless:
            raise UnsupportedFieldError(name)
    _limit("n", body.n or 1, config.max_choices)
    _limit("stop", len(stop_texts(body)), config.max_stop)
    _limit("stop_token_ids", len(body.stop_token_ids or ()), config.max_stop_token_ids)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError(
            "stream_options: only allowed when stream is true", "stream_options"
        )


def stop_texts(body: GenerationBody) -> tuple[str, ...]:
    """Return the body's stop strings."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def make_call(service: Service, served: Served, body: GenerationBody, prompts: Prompts) -> Call:
    """Return what the engine is asked: each prompt `n` times, with seeds that count up.

    `max_tokens` is cut to what fits the model.

    Raises:
        InvalidRequestError: a prompt is empty, or a token id is not in the vocabulary.
        ContextLengthError: a prompt leaves no room for output.
    """
    _check_vocabulary("stop_token_ids", body.stop_token_ids or (), served)
    n_choices = body.n or 1
    cache = body.cache or CacheOptions()
    requests = [
        GenerationRequest(
            request_id=RequestId(service.new_id()),
            token_ids=pack(token_ids),
            sampling=_sampling(body, max_tokens, choice_index, served),
            salt=body.cache_salt,
            read_cache=cache.read is not False,
            store_cache=cache.store is not False,
        )
        for token_ids in prompts.token_ids
        for max_tokens in (_tokens_that_fit(token_ids, prompts, served),)
        for choice_index in range(n_choices)
    ]
    return Call(tuple(requests), n_choices)


def _tokens_that_fit(token_ids: Sequence[int], prompts: Prompts, served: Served) -> int:
    if not token_ids:
        raise InvalidRequestError(f"{prompts.param}: an empty prompt", prompts.param)
    _check_vocabulary(prompts.param, token_ids, served)
    room = served.info.max_model_tokens - len(token_ids)
    if room < 1:
        raise ContextLengthError(len(token_ids), served.info.max_model_tokens, prompts.param)
    return room if prompts.max_tokens is None else min(prompts.max_tokens, room)


def _sampling(
    body: GenerationBody, max_tokens: int, choice_index: int, served: Served
) -> SamplingParams:
    temperature = _DEFAULT_TEMPERATURE if body.temperature is None else body.temperature
    is_greedy = body.top_p == 0  # a nucleus of nothing but the best token
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0 if is_greedy else temperature,
        top_p=1.0 if is_greedy or body.top_p is None else body.top_p,
        top_k=_top_k(body, served),
        seed=None if body.seed is None else (body.seed + choice_index) % _SEEDS,
        stop=stop_texts(body),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
    )


def _top_k(body: GenerationBody, served: Served) -> int | None:
    """Return how many tokens may be chosen from, None for all (also asked for as 0 or -1)."""
    if body.top_k is None or body.top_k < 1:
        return None
    return min(body.top_k, served.info.vocab_size)


def _check_vocabulary(param: str, token_ids: Sequence[int], served: Served) -> None:
    highest = max(token_ids, default=0)
    if highest >= served.info.vocab_size:
        raise InvalidRequestError(
            f"{param}: token id {highest}; this model has {served.info.vocab_size}", param
        )


def _limit(param: str, found: int, limit: int) -> None:
    if found > limit:
        raise InvalidRequestError(f"{param}: {found} is over this server's limit of {limit}", param)
