"""Waiting for a twin, as the owner of the cache sees it."""

from __future__ import annotations

from prefixcache.index.core import Core
from prefixcache.index.inflight import Waiter
from prefixcache.index.lease import Lease
from prefixcache.index.namespaces import Namespace
from prefixcache.index.tokens import Packed, n_tokens


class Twins:
    """Requests that start alike and are in flight together: one computes, the others wait."""

    def __init__(self, core: Core) -> None:
        self._in_flight, self._admission = core.in_flight, core.admission
        self._forest, self._publisher = core.forest, core.publisher

    def wait(self, namespace: Namespace, tokens: Packed, *, priority: int = 0) -> Waiter | None:
        """Wait for a running request that is about to store more of a prompt than is cached.

        Returns None when nothing in flight would spare at least a block. A waiter holds nothing.
        Once it `is_ready`, acquire with it; or leave. Cost: a look-up, and the live leases.
        """
        twin = self._find(namespace, tokens, n_tokens(tokens) - 1)
        if twin is None:
            return None
        leader, n_shared = twin
        return self._in_flight.wait(leader, n_shared, bytes(tokens), priority)

    def leave(self, waiter: Waiter) -> None:
        """End a wait without a request; another goes on for those who waited for this one.

        Leaving twice is harmless.
        """
        self._in_flight.leave(waiter)

    def priority(self, lease: Lease) -> int:
        """Return the highest priority of a request and of those who wait for it."""
        return self._in_flight.priority(lease)

    def _find(self, namespace: Namespace, tokens: Packed, end: int) -> tuple[Lease, int] | None:
        """Return who is about to store most of what a prompt would miss, and up to which token."""
        found, _ = self._admission.find(self._forest.root_to_look_in(namespace), tokens, end)
        n_hit = self._admission.tokens_of(found)
        candidates = [(found, end)]
        if self._publisher.prompts:
            candidates.extend(self._publisher.paths(namespace, tokens, end))
        twins = [self._in_flight.twin(match, tokens, most) for match, most in candidates]
        best = max((twin for twin in twins if twin is not None), key=_tokens_of, default=None)
        return best if best is not None and best[1] > n_hit else None


def _tokens_of(twin: tuple[Lease, int]) -> int:
    return twin[1]
