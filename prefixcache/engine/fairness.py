"""What each tenant has had of the engine, so that the one with least is served next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class TenantShares:
    """Counts the tokens computed for each tenant that has requests in flight.

    A tenant of weight 2 is charged half of each token, and so has twice as many when others
    compete with it. What was charged before its weight changed stands.

    Who comes back after a pause starts level with those who are there: what it did not use
    meanwhile is no credit, and what it had too much of is still counted. Source: arXiv:2401.00588,
    virtual token counters; here each token that the model is fed counts as one.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}  # by weight
        self._weights: dict[str, float] = {}
        self._in_flight: Counter[str] = Counter()

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Have these weights, and 1 for all others."""
        self._weights = dict(weights)

    def enter(self, tenant: str) -> None:
        """Take note of a request. Cost: the known tenants, when it is the tenant's only one."""
        if tenant not in self._in_flight:
            least = min((self._tokens[other] for other in self._in_flight), default=None)
            if least is None:  # nobody is there to be fair to: all start alike
                self._tokens.clear()
            else:
                self._tokens = {
                    name: tokens
                    for name, tokens in self._tokens.items()
                    if tokens > least or name in self._in_flight
                }
            self._tokens.setdefault(tenant, least or 0)
        self._in_flight[tenant] += 1

    def leave(self, tenant: str) -> None:
        """Take note of a request's end."""
        self._in_flight[tenant] -= 1
        if not self._in_flight[tenant]:
            del self._in_flight[tenant]

    def charge(self, tenant: str, n_tokens: int) -> None:
        """Count tokens that are to be computed; below 0: that are not, after all."""
        self._tokens[tenant] += n_tokens / self._weights.get(tenant, 1.0)

    def had(self, tenant: str) -> float:
        """Return how many tokens count as computed for a tenant with requests in flight."""
        return self._tokens[tenant]
