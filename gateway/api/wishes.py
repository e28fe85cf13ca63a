"""What a body asks of its answers, in the words of no dialect, and what the engine makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gateway.errors import InvalidRequestError
from gateway.served import Served
from prefixcache.types import Grammar, Retain, SamplingParams

_DEFAULT_TEMPERATURE = 1.0
_TOKEN_KEY = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Bound:
    """What an answer must follow, and the field of the body that says so."""

    param: str
    grammar: Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How answers are chosen, bound and cached. Defaults are what a body without fields gets."""

    n_choices: int = 1
    max_tokens: int | None = None  # None: as far as the context goes
    min_tokens: int = 0
    temperature: float | None = None  # None: 1
    top_p: float | None = None  # 0: greedy, a nucleus of nothing but the best token
    top_k: int | None = None  # None, 0 and less: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[str, float] = field(default_factory=dict)  # by token id, in decimal
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    shown_special_ids: tuple[int, ...] = ()
    bound: Bound | None = None
    top_scores: int | None = None  # of each output token; None: no scores
    prompt_scores: int | None = None
    salt: str | None = None
    read_cache: bool = True
    store_cache: bool = True
    retain: tuple[Retain, ...] = ()
    priority: int = 0
    deadline_seconds: float | None = None

    def sampling(self, max_tokens: int, served: Served) -> SamplingParams:
        """Return these wishes for an answer of at most `max_tokens` tokens.

        Raises:
            InvalidRequestError: a key of `logit_bias` is no token of the model.
        """
        temperature = _DEFAULT_TEMPERATURE if self.temperature is None else self.temperature
        is_greedy = self.top_p == 0
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min(self.min_tokens, max_tokens),
            temperature=0.0 if is_greedy else temperature,
            top_p=1.0 if is_greedy or self.top_p is None else self.top_p,
            top_k=_top_k(self.top_k, served),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(_biases(self.logit_bias, served)),
            seed=self.seed,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            shown_special_ids=self.shown_special_ids,
            grammar=None if self.bound is None else self.bound.grammar,
            top_scores=self.top_scores,
            prompt_scores=self.prompt_scores,
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


def _top_k(top_k: int | None, served: Served) -> int | None:
    """Return how many tokens may be chosen from, None for all (also asked for as 0 or -1)."""
    return None if top_k is None or top_k < 1 else min(top_k, served.info.vocab_size)
