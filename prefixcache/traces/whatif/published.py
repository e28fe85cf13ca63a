"""Which prefixes would be worth publishing: those that many requests begin with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prefixcache.traces.records import TraceRequest


class SharedPrefix(NamedTuple):
    """A prefix at which requests part that have begun alike."""

    hash_ids: tuple[int, ...]
    tokens: int
    requests: int  # that begin with it
    tenants: int  # of those; 0 where the trace has none
    saved_tokens: int  # what all of them but the first need not compute


class _Node:
    __slots__ = ("above", "n_requests", "tenants")

    def __init__(self, above: int | None) -> None:
        self.above = above
        self.n_requests = 0
        self.tenants: set[str] = set()


class PrefixCounts:
    """Counts, for each block, the requests that have it.

    Cost: O(1) a block; memory for all blocks of the trace.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._block_tokens = 0

    def add(self, request: TraceRequest) -> None:
        """Count a request. Its ids stand for whole prefixes."""
        self._block_tokens = request.block_tokens
        above = None
        for id in request.hash_ids:
            node = self._nodes.get(id)
            if node is None:
                node = self._nodes[id] = _Node(above)
            node.n_requests += 1
            if request.tenant is not None:
                node.tenants.add(request.tenant)
            above = id

    def top(self, n_prefixes: int, *, min_tenants: int = 0) -> list[SharedPrefix]:
        """Return the prefixes that save most, each at its longest: no longer one has as many.

        One that begins with another, or that another begins with, may be among them too.

        Args:
            min_tenants: fewer are not enough.
        """
        goes_on = {
            node.above
            for node in self._nodes.values()
            if node.above is not None and node.n_requests == self._nodes[node.above].n_requests
        }
        ends = [
            self._prefix(id)
            for id, node in self._nodes.items()
            if node.n_requests > 1 and id not in goes_on and len(node.tenants) >= min_tenants
        ]
        return sorted(ends, key=lambda prefix: -prefix.saved_tokens)[:n_prefixes]

    def _prefix(self, id: int) -> SharedPrefix:
        node, ids = self._nodes[id], [id]
        while (above := self._nodes[ids[-1]].above) is not None:
            ids.append(above)
        n_tokens = len(ids) * self._block_tokens
        saved = (node.n_requests - 1) * n_tokens
        n_tenants = len(node.tenants)
        return SharedPrefix(tuple(reversed(ids)), n_tokens, node.n_requests, n_tenants, saved)


def worth_publishing(requests: Iterable[TraceRequest], n_prompts: int) -> Sequence[tuple[int, ...]]:
    """Return the hash ids of the prefixes that several tenants share and that save most.

    Of two where one begins with the other, only the one that saves more is there.
    """
    counts = PrefixCounts()
    for request in requests:
        counts.add(request)
    chosen: list[tuple[int, ...]] = []
    for prefix in counts.top(100 * n_prompts, min_tenants=2):
        ids = prefix.hash_ids
        if len(chosen) < n_prompts and not any(_is_nested(ids, other) for other in chosen):
            chosen.append(ids)
    return chosen


def _is_nested(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    n_common = min(len(a), len(b))
    return a[:n_common] == b[:n_common]
