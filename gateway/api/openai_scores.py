"""Log-probabilities of tokens as the two kinds of OpenAI completion write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from prefixcache.text import TokenBytes
from prefixcache.types import TokenScore

_LEAST = -9999.0  # what OpenAI writes for a chance of 0, which JSON has no number for


class TopToken(msgspec.Struct, frozen=True):
    """A token that could have come."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(msgspec.Struct, frozen=True):
    """A token that came, and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopToken]


class ChatScores(msgspec.Struct, frozen=True):
    """The `logprobs` of a chat choice."""

    content: list[ChatToken]
    refusal: None = None


class TextScores(msgspec.Struct, frozen=True):
    """The `logprobs` of a completions choice: lists of equal length, one entry a token.

    A prompt's first token has no chance of its own: null. The tops include the token that came.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # in characters from the start of the choice's text


def chat_scores(scores: Iterable[TokenScore], tokens: TokenBytes) -> ChatScores:
    """Return the scores of an answer's tokens for chat completions."""
    return ChatScores([_chat_token(score, tokens) for score in scores])


def text_scores(
    scores: Sequence[TokenScore], tokens: TokenBytes, *, start: int, first: int | None = None
) -> TextScores:
    """Return scores for plain completions.

    Args:
        scores: of consecutive tokens.
        tokens: what they stand for.
        start: how many characters of the choice's text come before them.
        first: a token without a score before them, the prompt's first.
    """
    ids = [*([] if first is None else [first]), *(score.token_id for score in scores)]
    texts = [tokens.text(token_id) for token_id in ids]
    unscored: list[None] = [None] * (len(ids) - len(scores))
    offsets = [start]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    return TextScores(
        texts,
        [*unscored, *(_number(score.logprob) for score in scores)],
        [*unscored, *(_top_texts(score, tokens) for score in scores)],
        offsets[:-1],
    )


def _chat_token(score: TokenScore, tokens: TokenBytes) -> ChatToken:
    spelled = tokens.of(score.token_id)
    tops = [_top_token(token_id, logprob, tokens) for token_id, logprob in score.top]
    return ChatToken(spelled.decode(errors="replace"), _number(score.logprob), list(spelled), tops)


def _top_token(token_id: int, logprob: float, tokens: TokenBytes) -> TopToken:
    spelled = tokens.of(token_id)
    return TopToken(spelled.decode(errors="replace"), _number(logprob), list(spelled))


def _top_texts(score: TokenScore, tokens: TokenBytes) -> dict[str, float]:
    """Return the tops by text; of several with one text the most likely stands."""
    tops: dict[str, float] = {}
    for token_id, logprob in (*score.top, (score.token_id, score.logprob)):
        tops.setdefault(tokens.text(token_id), _number(logprob))
    return tops


def _number(logprob: float) -> float:
    return max(logprob, _LEAST)
