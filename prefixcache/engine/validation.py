"""What is checked of a request before it may queue."""

from __future__ import annotations

import math

from prefixcache.config import MAX_ADAPTER_NAME
from prefixcache.index import TOKEN_BYTES
from prefixcache.types import (
    FailureKind,
    GenerationRequest,
    Grammar,
    ModelInfo,
    Retain,
    SamplingParams,
)

MOST_ADDED = 1e6  # to a logit: far more than any of a model's, and finite in float32

MOST_RETAINS = 16  # of one request

Rule = tuple[str, bool, str]  # a setting, whether it is as it must be, and how that is


def request_refusal(
    request: GenerationRequest, info: ModelInfo, *, has_tokenizer: bool, max_grammar_bytes: int
) -> tuple[FailureKind, str] | None:
    """Return why the model of `info` cannot serve `request`, or None when it can.

    Cost: O(prompt tokens).
    """
    n_prompt, rest = divmod(len(request.token_ids), TOKEN_BYTES)
    if rest:
        return FailureKind.INVALID, f"packed token ids end {rest} bytes into the next one"
    if not n_prompt:
        return FailureKind.INVALID, "a prompt needs at least one token id"
    if n_prompt >= info.max_model_tokens:
        return FailureKind.TOO_LARGE, (
            f"the prompt has {n_prompt} tokens; this server takes at most"
            f" {info.max_model_tokens - 1}, so that one more can be generated"
        )
    highest = max(memoryview(request.token_ids).cast("I"))
    biased = (token for token, _ in request.sampling.logit_bias)
    for token in (highest, *request.sampling.stop_token_ids, *biased):
        if not 0 <= token < info.vocab_size:
            return (
                FailureKind.INVALID,
                f"token id {token}; this model's are 0..{info.vocab_size - 1}",
            )
    if request.sampling.stop and not has_tokenizer:
        return FailureKind.INVALID, "stop strings need a tokenizer"
    unusable = _grammar_fault(request.sampling.grammar, max_grammar_bytes, has_tokenizer)
    wrong = (
        _adapter_fault(request.adapter, info)
        or unusable
        or _sampling_fault(request.sampling)
        or _deadline_fault(request.deadline_seconds)
        or _retain_fault(request.retain)
    )
    kind = FailureKind.GRAMMAR if unusable and wrong == unusable else FailureKind.INVALID
    return None if wrong is None else (kind, wrong)


def _adapter_fault(name: str | None, info: ModelInfo) -> str | None:
    if name is None or any(adapter.name == name for adapter in info.adapters):
        return None
    return f"no adapter {name[:MAX_ADAPTER_NAME]!r} is loaded"


def _grammar_fault(grammar: Grammar | None, max_bytes: int, has_tokenizer: bool) -> str | None:
    if grammar is None:
        return None
    if not has_tokenizer:
        return "grammars need a tokenizer"
    n_bytes = len(grammar.text.encode(errors="replace"))
    if n_bytes > max_bytes:
        return f"the grammar has {n_bytes} bytes; this server compiles at most {max_bytes}"
    return None


def _deadline_fault(seconds: float | None) -> str | None:
    if seconds is not None and not seconds > 0:
        return f"deadline_seconds is {seconds}; it must be above 0"
    return None


def _retain_fault(retain: tuple[Retain, ...]) -> str | None:
    if len(retain) > MOST_RETAINS:
        return f"{len(retain)} prefixes are to be retained; {MOST_RETAINS} are the most"
    for each in retain:
        if each.n_tokens < 1 or not each.seconds > 0:
            return f"retain is {each.n_tokens} tokens, {each.seconds} s; both must be above 0"
    return None


def _sampling_fault(sampling: SamplingParams) -> str | None:
    rules = (*_length_rules(sampling), *_filter_rules(sampling), *_logit_rules(sampling))
    for setting, is_met, rule in rules:
        if not is_met:
            return f"{setting} is {getattr(sampling, setting)}; it must be {rule}"
    return None


def _length_rules(sampling: SamplingParams) -> tuple[Rule, ...]:
    return (
        ("max_tokens", sampling.max_tokens >= 0, "at least 0"),
        ("min_tokens", sampling.min_tokens >= 0, "at least 0"),
        ("top_scores", (sampling.top_scores or 0) >= 0, "at least 0"),
        ("prompt_scores", (sampling.prompt_scores or 0) >= 0, "at least 0"),
    )


def _filter_rules(sampling: SamplingParams) -> tuple[Rule, ...]:
    temperature, seed = sampling.temperature, sampling.seed
    is_usable = math.isfinite(temperature) and temperature >= 0
    return (
        ("temperature", is_usable, "finite and at least 0"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k is None or sampling.top_k >= 1, "at least 1"),
        ("min_p", 0 <= sampling.min_p <= 1, "from 0 to 1"),
        ("seed", seed is None or -(2**63) <= seed < 2**63, "a signed 64-bit integer"),
    )


def _logit_rules(sampling: SamplingParams) -> tuple[Rule, ...]:
    repetition = sampling.repetition_penalty
    presence, frequency = abs(sampling.presence_penalty), abs(sampling.frequency_penalty)
    are_biases = all(abs(bias) <= MOST_ADDED for _, bias in sampling.logit_bias)
    added = f"from -{MOST_ADDED:g} to {MOST_ADDED:g}"
    return (
        ("repetition_penalty", 0.01 <= repetition <= 100, "from 0.01 to 100"),
        ("presence_penalty", presence <= MOST_ADDED, added),
        ("frequency_penalty", frequency <= MOST_ADDED, added),
        ("logit_bias", are_biases, added),
    )
