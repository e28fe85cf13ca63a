"""Ours: what a prefix costs to compute again, and whether it came back before."""

from __future__ import annotations

from prefixcache.index.entry import Entry
from prefixcache.index.lazy_heap import LazyHeap
from prefixcache.index.policies.segments import DEFAULT_SHARE, Segments

_DEPTH_POWER = 0.25  # mild: what it saves is certain, that it comes back is not


class CostAwarePolicy:
    """Gives up first what is worth least for its room, where worth wears off with time.

    What was found cached before is protected, up to `protected_share` of all listed blocks, as in
    `SlruPolicy`. The rest is in the order of `clock + worth`, with the clock of an entry's last
    use (or of its leaving the protected part); the clock is the key of the last victim. So an
    entry that is worth twice as much as another stays unused for twice as long, measured in
    turnover of the cache rather than in seconds, and nothing stays for ever.

    Worth is the fourth root of the length of the prefix that an entry ends: attention makes deep
    tokens dearer. The length of the entry itself cancels: a longer one saves more, and takes as
    much more room. Every call is O(log n), amortised.

    Source: Cherkasova: Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching
    policy (HP Labs, 1998). What else was tried: prefixcache/design/0006-eviction-policies.md.

    Raises:
        ConfigError: `protected_share` is not above 0 and at most 1.
    """

    def __init__(self, *, protected_share: float = DEFAULT_SHARE) -> None:
        self._segments = Segments(protected_share)
        self._leaves = LazyHeap[float, Entry]()  # on probation
        self._clock = 0.0
        self._clock_at_use: dict[Entry, float] = {}  # on probation and no leaf when it came

    def add(self, entry: Entry) -> None:
        """List `entry`, protected if it was hit."""
        for on_probation in self._segments.enter(entry):
            if on_probation.n_resident:
                self._clock_at_use[on_probation] = self._clock
            else:
                self._push(on_probation, self._clock)

    def discard(self, entry: Entry) -> None:
        """Take `entry` off its list."""
        self._segments.leave(entry)
        self._leaves.discard(entry)
        self._clock_at_use.pop(entry, None)

    def expose(self, entry: Entry) -> None:
        """Put `entry` among the leaves, unless it is protected."""
        clock = self._clock_at_use.pop(entry, None)
        if clock is not None:
            self._push(entry, clock)

    def victim(self, now: float) -> Entry | None:
        """Return the leaf whose worth wears off first; a protected one when there is no other."""
        first = self._leaves.first()
        if first is None:
            return self._segments.protected.oldest_leaf()
        key, entry = first
        self._clock = max(self._clock, key)
        return entry

    def overdue(self, now: float) -> Entry | None:
        """Return None: entries go only to make room."""
        return None

    def _push(self, entry: Entry, clock: float) -> None:
        worth: float = entry.end_block**_DEPTH_POWER
        self._leaves.push(entry, clock + worth)
