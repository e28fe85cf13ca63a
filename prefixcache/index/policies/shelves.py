"""Leaves by kind and age: finds one that is worth least without looking at each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf, nextafter

from prefixcache.index.entry import Entry
from prefixcache.index.policies.ages import N_AGES, UNTIL_SECONDS, age_of
from prefixcache.index.policies.links import EntryList, unlink

_MOST_STEPS = 32  # to a place in the order of last use


class Shelves:
    """A list of entries for each kind and age, and one for those that are no leaves.

    Entries move to the list of the next age when it is time. Lists are ranked by the worth of
    what is on them; a bit for each one that is not empty tells the first by rank.

    Cost: O(1) a call, and O(log n) for each of the few ages that an entry lives through.
    """

    def __init__(self, n_kinds: int) -> None:
        n_shelves = n_kinds * N_AGES  # kind * N_AGES + age
        self._lists: defaultdict[int, EntryList] = defaultdict(EntryList)
        self._inner = EntryList()
        self._shelf_of: dict[Entry, int | None] = {}  # None: no leaf
        self._n_on = [0] * n_shelves
        self._moves: list[tuple[float, int]] = []  # when a list's oldest entry moves on: a heap
        self._next_move = [inf] * n_shelves
        self._ranked = list(range(n_shelves - 1, -1, -1))  # of one kind, older ones are worth less
        self._rank = self._ranked.copy()
        self._keeps_older = [False] * n_shelves  # what has waited longer is worth more
        self._filled = 0  # bit by rank

    def __len__(self) -> int:
        return len(self._shelf_of)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._shelf_of

    def put(self, entry: Entry, kind: int, now: float) -> None:
        """List `entry`, which is not listed."""
        if entry.n_resident:
            self._inner.append(entry)
            self._shelf_of[entry] = None
            return
        age = age_of(now - entry.last_used)
        shelf = kind * N_AGES + age
        _insert(self._lists[shelf], entry, from_newest=self._keeps_older[shelf])
        self._shelf_of[entry] = shelf
        if not self._n_on[shelf]:
            self._filled |= 1 << self._rank[shelf]
        self._n_on[shelf] += 1
        if age < N_AGES - 1:
            self._plan(shelf, entry.last_used + UNTIL_SECONDS[age])

    def take(self, entry: Entry) -> bool:
        """Unlist `entry`; return whether it was listed."""
        if entry not in self._shelf_of:
            return False
        shelf = self._shelf_of.pop(entry)
        unlink(entry)
        if shelf is not None:
            self._n_on[shelf] -= 1
            if not self._n_on[shelf]:
                self._filled ^= 1 << self._rank[shelf]
        return True

    def least(self, now: float) -> Entry | None:
        """Return a leaf that is worth least, None when there is no leaf."""
        while self._moves and self._moves[0][0] <= now:
            self._move_on(heappop(self._moves)[1], now)
        if not self._filled:
            return None
        shelf = self._ranked[(self._filled & -self._filled).bit_length() - 1]
        entries = self._lists[shelf]
        return entries.end.older if self._keeps_older[shelf] else entries.oldest

    def rank(self, worths: Sequence[Sequence[float]]) -> None:
        """Order the lists by the worth of their kind and age. Cost: all lists."""
        flat = [worth for by_age in worths for worth in by_age]
        self._ranked = sorted(range(len(flat)), key=flat.__getitem__)
        for rank, shelf in enumerate(self._ranked):
            self._rank[shelf] = rank
        self._keeps_older = [
            age < N_AGES - 1 and by_age[age + 1] > by_age[age]
            for by_age in worths
            for age in range(N_AGES)
        ]
        self._filled = sum(1 << self._rank[shelf] for shelf, n in enumerate(self._n_on) if n)

    def _plan(self, shelf: int, moment: float) -> None:
        if moment < self._next_move[shelf]:
            self._next_move[shelf] = moment
            heappush(self._moves, (moment, shelf))

    def _move_on(self, shelf: int, now: float) -> None:
        """Take what is too old from a list to where it belongs."""
        self._next_move[shelf] = inf
        kind, age = divmod(shelf, N_AGES)
        entries = self._lists[shelf]
        while (entry := entries.oldest) is not None and age_of(now - entry.last_used) > age:
            self.take(entry)
            self.put(entry, kind, now)
        if entry is not None:  # sums are rounded: without a moment's pause this might never end
            self._plan(shelf, max(entry.last_used + UNTIL_SECONDS[age], nextafter(now, inf)))


def _insert(entries: EntryList, entry: Entry, *, from_newest: bool) -> None:
    """Put `entry` in a list in the order of last use, as far as that takes few steps.

    Most come in as the newest. A parent that turns into a leaf belongs near the end where its
    last child was taken, so the search begins there.
    """
    end = entries.end
    newest = end.older
    assert newest is not None
    if newest is end or newest.last_used <= entry.last_used:
        entries.append(entry)
        return
    before = newest if from_newest else end
    for _ in range(_MOST_STEPS):
        following = before.older if from_newest else before.newer
        assert following is not None
        if from_newest and (before is end or before.last_used <= entry.last_used):
            break
        if not from_newest and following.last_used > entry.last_used:
            break
        before = following
    _put_after(before, entry)


def _put_after(before: Entry, entry: Entry) -> None:
    following = before.newer
    assert following is not None
    entry.older, entry.newer = before, following
    before.newer = following.older = entry
