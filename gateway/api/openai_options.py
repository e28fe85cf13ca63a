"""From the fields of an OpenAI body to what is wished of its answers."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.api.calls import check_count
from gateway.api.openai_cache import CachePlan
from gateway.api.openai_models import CacheOptions, GenerationBody
from gateway.api.wishes import Bound, Wishes
from gateway.config import GatewayConfig
from gateway.errors import InvalidRequestError, UnsupportedFieldError


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
    refuse_unbuilt(body, neutral)
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


def refuse_unbuilt(body: object, neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse fields of `body` that are not built, unless their value changes nothing.

    Raises:
        UnsupportedFieldError: a field of `neutral` has a value that would change the answer.
    """
    for name, harmless in neutral.items():
        value = getattr(body, name)
        if value is not None and value not in harmless:
            raise UnsupportedFieldError(name)


def stop_texts(body: GenerationBody) -> tuple[str, ...]:
    """Return the body's stop strings."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def wishes_of(
    body: GenerationBody,
    *,
    max_tokens: int | None,
    top_scores: int | None,
    prompt_scores: int | None = None,
    bound: Bound | None = None,
    shown_special_ids: tuple[int, ...] = (),
    plan: CachePlan | None = None,
) -> Wishes:
    """Return what `body` wishes; the arguments are what the two kinds of body say differently."""
    cache, plan = body.cache or CacheOptions(), plan or CachePlan(True)
    return Wishes(
        n_choices=body.n or 1,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=body.logit_bias or {},
        seed=body.seed,
        stop=stop_texts(body),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        shown_special_ids=shown_special_ids,
        bound=bound,
        top_scores=top_scores,
        prompt_scores=prompt_scores,
        salt=body.cache_salt,
        read_cache=plan.is_used and cache.read is not False,
        store_cache=plan.is_used and cache.store is not False,
        retain=plan.retain if cache.store is not False else (),
        priority=body.priority or 0,
        deadline_seconds=body.deadline_seconds,
    )
