"""What is counted of a replay: sums, the definitions of a hit rate, and how it went over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from prefixcache.traces.records import TraceRequest
from prefixcache.traces.sums import Simulation, Sums

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "by_token": "hit tokens / tokens, over all requests: what needs no computing",
        "by_block": "hit blocks / blocks, over all requests; blocks as the trace has ids for",
        "mean_per_request": "each request's hit tokens / tokens, and the mean of that",
        "mean_per_request_by_block": "each request's hit blocks / blocks, and the mean of that",
    }
)
HEADLINE = "by_token"

OTHER_TENANTS = "(others)"

_MAX_PERIODS = 128
_MAX_TENANTS = 1000


class Rates(NamedTuple):
    """Hit rates by each of `DEFINITIONS`; None: not known, or there is nothing to divide by."""

    by_token: float | None
    by_block: float | None
    mean_per_request: float | None
    mean_per_request_by_block: float | None


class Counted(NamedTuple):
    """What was counted of some requests."""

    sums: Simulation
    rates: Rates


@dataclass(frozen=True, slots=True)
class Period:
    """A part of the trace's time."""

    start_seconds: float
    requests: int
    tokens: int
    hit_tokens: int


@dataclass(slots=True)
class TenantSums:
    """What was counted of one tenant."""

    requests: int = 0
    tokens: int = 0
    hit_tokens: int = 0


class Tally:
    """Counts requests and what of them was cached; remembers none of them."""

    def __init__(self) -> None:
        self._sums = Sums()
        self._token_shares = self._block_shares = 0.0
        self._n_with_tokens = self._n_with_blocks = 0

    def add(self, request: TraceRequest, hit_blocks: int) -> None:
        """Count a request whose first `hit_blocks` blocks were cached."""
        self._sums.add(request, hit_blocks)
        if request.input_tokens:
            self._n_with_tokens += 1
            self._token_shares += hit_tokens(request, hit_blocks) / request.input_tokens
        if request.hash_ids:
            self._n_with_blocks += 1
            self._block_shares += hit_blocks / len(request.hash_ids)

    def counted(self) -> Counted:
        """Return the sums and hit rates so far."""
        sums = self._sums.result()
        rates = rates_of(sums)._replace(
            mean_per_request=_share(self._token_shares, self._n_with_tokens),
            mean_per_request_by_block=_share(self._block_shares, self._n_with_blocks),
        )
        return Counted(sums, rates)


class TenantTally:
    """Sums by tenant, of the first `_MAX_TENANTS` of them; the others are one."""

    def __init__(self) -> None:
        self._sums: dict[str, TenantSums] = {}

    def add(self, request: TraceRequest, hit_blocks: int) -> None:
        """Count a request of a tenant whose first `hit_blocks` blocks were cached."""
        name = request.tenant or ""
        if name not in self._sums and len(self._sums) >= _MAX_TENANTS:
            name = OTHER_TENANTS
        sums = self._sums.setdefault(name, TenantSums())
        sums.requests += 1
        sums.tokens += request.input_tokens
        sums.hit_tokens += hit_tokens(request, hit_blocks)

    def sums(self) -> Mapping[str, TenantSums]:
        """Return the sums by tenant, who has most tokens first."""
        return dict(sorted(self._sums.items(), key=lambda item: -item[1].tokens))


class Timeline:
    """Requests by when they came, in at most `_MAX_PERIODS` periods of equal length.

    The periods begin at a second each; whenever a request is beyond the last of them, each two
    become one.
    """

    def __init__(self) -> None:
        self._seconds = 1.0
        self._sums: dict[int, list[int]] = {}

    def add(self, request: TraceRequest, hit_blocks: int) -> None:
        """Count a request whose first `hit_blocks` blocks were cached."""
        index = int(max(request.timestamp_seconds, 0.0) / self._seconds)
        while index >= _MAX_PERIODS:
            self._halve()
            index //= 2
        sums = self._sums.setdefault(index, [0, 0, 0])
        sums[0] += 1
        sums[1] += request.input_tokens
        sums[2] += hit_tokens(request, hit_blocks)

    def periods(self) -> list[Period]:
        """Return the periods that have requests, in order."""
        return [Period(index * self._seconds, *sums) for index, sums in sorted(self._sums.items())]

    def _halve(self) -> None:
        halved: dict[int, list[int]] = {}
        for index, sums in self._sums.items():
            known = halved.setdefault(index // 2, [0, 0, 0])
            for i, n in enumerate(sums):
                known[i] += n
        self._sums = halved
        self._seconds *= 2


def hit_tokens(request: TraceRequest, hit_blocks: int) -> int:
    """Return the tokens in a request's first `hit_blocks` blocks."""
    return min(hit_blocks * request.block_tokens, request.input_tokens)


def rates_of(sums: Simulation) -> Rates:
    """Return the hit rates that sums tell; means are not among them."""
    by_token = _share(sums.hit_tokens, sums.tokens)
    return Rates(by_token, _share(sums.hit_blocks, sums.blocks), None, None)


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
