"""What is checked of a request before it may queue."""

from __future__ import annotations

import math

from prefixcache.index import TOKEN_BYTES
from prefixcache.types import FailureKind, GenerationRequest, ModelInfo, SamplingParams


def request_refusal(
    request: GenerationRequest, info: ModelInfo, *, has_tokenizer: bool
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
    for token in (highest, *request.sampling.stop_token_ids):
        if not 0 <= token < info.vocab_size:
            return (
                FailureKind.INVALID,
                f"token id {token}; this model's are 0..{info.vocab_size - 1}",
            )
    if request.sampling.stop and not has_tokenizer:
        return FailureKind.INVALID, "stop strings need a tokenizer"
    wrong = _sampling_fault(request.sampling) or _deadline_fault(request.deadline_seconds)
    return None if wrong is None else (FailureKind.INVALID, wrong)


def _sampling_fault(sampling: SamplingParams) -> str | None:
    if sampling.max_tokens < 1:
        return f"max_tokens is {sampling.max_tokens}; it must be at least 1"
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature is {sampling.temperature}; it must be finite and at least 0"
    if not 0 < sampling.top_p <= 1:
        return f"top_p is {sampling.top_p}; it must be above 0 and at most 1"
    if sampling.top_k is not None and sampling.top_k < 1:
        return f"top_k is {sampling.top_k}; it must be at least 1"
    if sampling.seed is not None and not -(2**63) <= sampling.seed < 2**63:
        return f"seed is {sampling.seed}; it must fit a signed 64-bit integer"
    return None


def _deadline_fault(seconds: float | None) -> str | None:
    if seconds is not None and not seconds > 0:
        return f"deadline_seconds is {seconds}; it must be above 0"
    return None
