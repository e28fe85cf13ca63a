"""Why a request did not find more of its prompt cached."""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from typing import NamedTuple


class MissReason(StrEnum):
    """What stands between a request and a longer match."""

    NOTHING_STORED = "nothing_stored"  # nobody went on from here
    DIVERGED = "diverged"  # something else is stored from this token on
    EVICTED = "evicted"  # it was stored, and gave way
    OLD_GENERATION = "old_generation"  # it was stored, and has been invalidated
    OTHER_NAMESPACE = "other_namespace"  # the same tenant has it under another model, adapter, salt
    BELOW_BLOCK = "below_block"  # what is left, or shared, is shorter than a block
    RETIRED_VERSION = "retired_version"  # it was a published prompt's
    DISABLED = "disabled"  # the request did not look


class Miss(NamedTuple):
    """Where a prompt leaves what is stored, and why no more of it was found."""

    reason: MissReason
    token: int  # a position; tokens that it shares with a block that is not copied lie before


class Gone:
    """Which blocks were stored once, to tell `evicted` from `nothing_stored`.

    Only digests of the process's own hash are kept, of the last `most` blocks that a prompt would
    go on with, so now and then a reason is wrong; matches never depend on it.
    """

    def __init__(self, most: int = 65_536) -> None:
        self._half = most // 2
        self._recent: dict[int, MissReason] = {}
        self._older: dict[int, MissReason] = {}
        self.is_empty = True  # nothing has gone so far

    def note(self, tenant: str, start_block: int, block: bytes, reason: MissReason) -> None:
        """Remember that the block of a tenant at `start_block` has gone. O(1)."""
        self.is_empty = False
        self._recent[hash((tenant, start_block, block))] = reason
        if len(self._recent) > self._half:
            self._older, self._recent = self._recent, {}

    def reason(self, tenant: str, start_block: int, block: bytes) -> MissReason | None:
        """Return why the block has gone, if it is known to have been there. O(1)."""
        key = hash((tenant, start_block, block))
        return self._recent.get(key) or self._older.get(key)


class Tally:
    """Counters of look-ups; none ever falls."""

    __slots__ = ("hit_tokens", "lookup_tokens", "lookups", "misses")

    def __init__(self) -> None:
        self.lookups = 0
        self.lookup_tokens = 0
        self.hit_tokens = 0
        self.misses: defaultdict[MissReason, int] = defaultdict(int)  # requests by reason

    def add(self, n_tokens: int, n_hit: int, reason: MissReason | None) -> None:
        """Count a request."""
        self.lookups += 1
        self.lookup_tokens += n_tokens
        self.hit_tokens += n_hit
        if reason is not None:
            self.misses[reason] += 1

    def find_more(self, n_hit: int, reason: MissReason | None) -> None:
        """Count tokens that were found later; `reason`: why it counted as a miss, and does not."""
        self.hit_tokens += n_hit
        if reason is not None:
            self.misses[reason] -= 1

    def merge(self, other: Tally) -> None:
        """Add the counts of `other`."""
        self.lookups += other.lookups
        self.lookup_tokens += other.lookup_tokens
        self.hit_tokens += other.hit_tokens
        for reason, n in dict(other.misses).items():
            self.misses[reason] += n
