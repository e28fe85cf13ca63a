"""Sums over the requests of a trace, one request after another."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.traces.records import TraceRequest


@dataclass(frozen=True, slots=True)
class Simulation:
    """Sums over the requests of a trace. What is hit was cached when its request arrived."""

    requests: int
    blocks: int
    hit_blocks: int
    tokens: int
    hit_tokens: int
    attention_pairs: int  # (token, token that it attends to), itself included
    hit_attention_pairs: int  # those that needed no computing


class Sums:
    """Counts requests and their hits; remembers none of them."""

    def __init__(self) -> None:
        self._requests = self._blocks = self._hit_blocks = 0
        self._tokens = self._hit_tokens = self._pairs = self._hit_pairs = 0

    def add(self, request: TraceRequest, hit_blocks: int) -> None:
        """Count a request whose first `hit_blocks` blocks were cached."""
        n_tokens = request.input_tokens
        n_hit = min(hit_blocks * request.block_tokens, n_tokens)
        self._requests += 1
        self._blocks += len(request.hash_ids)
        self._hit_blocks += hit_blocks
        self._tokens += n_tokens
        self._hit_tokens += n_hit
        self._pairs += attention_pairs(n_tokens)
        self._hit_pairs += attention_pairs(n_hit)

    def result(self) -> Simulation:
        """Return the sums so far."""
        return Simulation(
            requests=self._requests,
            blocks=self._blocks,
            hit_blocks=self._hit_blocks,
            tokens=self._tokens,
            hit_tokens=self._hit_tokens,
            attention_pairs=self._pairs,
            hit_attention_pairs=self._hit_pairs,
        )


def attention_pairs(n_tokens: int) -> int:
    """Return how many pairs (token, token it attends to) a prefix of `n_tokens` tokens has."""
    return n_tokens * (n_tokens + 1) // 2
