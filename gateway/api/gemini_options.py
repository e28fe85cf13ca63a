"""From a generationConfig to what is wished of the answers."""

from __future__ import annotations

import msgspec

from gateway.api.calls import check_count
from gateway.api.gemini_models import GenerationConfig
from gateway.api.gemini_schema import json_schema
from gateway.api.tool_use import ToolUse
from gateway.api.wishes import Bound, Wishes
from gateway.config import GatewayConfig
from gateway.errors import InvalidRequestError, UnsupportedFieldError
from prefixcache.types import Grammar, GrammarKind, Retain

_AT = "generationConfig"
_ANY_JSON = '{"type": ["object", "array"]}'


def check_config(config: GenerationConfig, limits: GatewayConfig) -> Bound | None:
    """Refuse what a type cannot, and return what answers must follow.

    Raises:
        UnsupportedFieldError: speech is asked for, or anything else but text.
        InvalidRequestError: too many of something, or fields that need others.
    """
    check_count(f"{_AT}.candidateCount", config.candidate_count or 1, limits.max_choices)
    stops = len(config.stop_sequences or ())
    check_count(f"{_AT}.stopSequences", stops, limits.max_stop)
    if config.speech_config is not None:
        raise UnsupportedFieldError(f"{_AT}.speechConfig")
    if any(each.upper() != "TEXT" for each in config.response_modalities or ()):
        raise UnsupportedFieldError(f"{_AT}.responseModalities")
    if config.logprobs is not None and not config.response_logprobs:
        param = f"{_AT}.logprobs"
        raise InvalidRequestError(f"{param}: needs responseLogprobs to be true", param)
    if config.top_k is not None and config.top_k % 1:
        param = f"{_AT}.topK"
        raise InvalidRequestError(f"{param}: a whole number is needed", param)
    return _bound(config)


def wishes_of(
    config: GenerationConfig,
    use: ToolUse,
    *,
    shown_special_ids: tuple[int, ...],
    salt: str | None,
    retain: tuple[Retain, ...],
) -> Wishes:
    """Return what `config` wishes, and the rest of a body beside it."""
    return Wishes(
        n_choices=config.candidate_count or 1,
        max_tokens=config.max_output_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=None if config.top_k is None else int(config.top_k),
        presence_penalty=config.presence_penalty or 0.0,
        frequency_penalty=config.frequency_penalty or 0.0,
        seed=config.seed,
        stop=tuple(config.stop_sequences or ()),
        shown_special_ids=shown_special_ids,
        bound=use.bound,
        top_scores=(config.logprobs or 0) if config.response_logprobs else None,
        salt=salt,
        retain=retain,
    )


def _bound(config: GenerationConfig) -> Bound | None:
    param, schema = f"{_AT}.responseSchema", config.response_schema
    mime_type = config.response_mime_type or "text/plain"
    given = config.response_json_schema
    if schema is not None and given is not None:
        raise InvalidRequestError(f"{param}: leave it out beside responseJsonSchema", param)
    if mime_type == "text/plain":
        if schema is not None or given is not None:
            name = f"{_AT}.responseMimeType"
            raise InvalidRequestError(f"{name}: a schema needs application/json", name)
        return None
    if schema is not None:
        given = json_schema(schema, param)
    if mime_type == "text/x.enum":
        return Bound(param, _choice(given, param))
    text = _ANY_JSON if given is None else msgspec.json.encode(given).decode()
    return Bound(param, Grammar(GrammarKind.JSON_SCHEMA, text, is_lenient=True))


def _choice(schema: object, param: str) -> Grammar:
    choices = schema.get("enum") if isinstance(schema, dict) else None
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) for c in choices):
        raise InvalidRequestError(f"{param}.enum: text/x.enum needs its texts", f"{param}.enum")
    return Grammar(GrammarKind.CHOICE, msgspec.json.encode(choices).decode())
