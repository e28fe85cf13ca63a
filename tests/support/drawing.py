"""Choosing tokens from single rows of logits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from prefixcache.engine.sampling import Sampler, choose_tokens


def draw(sampler: Sampler, logits: Tensor) -> int:
    """Return a token for one row; there must be one."""
    (token,) = tokens_of([logits], [sampler])
    assert token is not None
    return token


def tokens_of(rows: Sequence[Tensor], samplers: Sequence[Sampler]) -> list[int | None]:
    """Return a token for each row, None for a row that cannot be chosen from."""
    return [pick.token if pick else None for pick in choose_tokens(rows, samplers)]
