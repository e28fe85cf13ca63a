"""What a policy remembers of prefixes, also of those that have been given up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from math import inf

from prefixcache.index.entry import Entry
from prefixcache.index.policies.duels import Duellist

Key = int


def key_of(entry: Entry) -> Key:
    """Return a number that an entry shares with all that begin where it does, with its block.

    So an entry that is cut, or given up and stored again, is known again. It is a hash: where two
    prefixes share one, they are taken for one, and no harm is done but to what is learned.
    """
    block_bytes = len(entry.edge) // entry.n_blocks
    return hash((entry.end_block - entry.n_blocks, entry.edge[:block_bytes]))


class Past:
    """What is known of one prefix."""

    __slots__ = ("duellist", "entry", "kind", "last_used", "tip_block", "uses")

    def __init__(self, entry: Entry, kind: int) -> None:
        self.last_used = entry.last_used
        self.uses = 1  # how often it was used, or what it goes on from
        self.kind = kind  # of its returns, see `Returns`
        self.tip_block: float = inf  # where the last prompt through it ended, if that was here
        self.entry: Entry | None = entry  # that is listed now; None: there is none
        self.duellist = Duellist()


class History:
    """Prefixes by their keys, the longest unused first."""

    def __init__(self) -> None:
        self._pasts: OrderedDict[Key, Past] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pasts)

    def get(self, key: Key) -> Past | None:
        """Return what is known of a prefix, or None."""
        return self._pasts.get(key)

    def renew(self, key: Key, past: Past) -> None:
        """Note that a prefix has been used last of all."""
        self._pasts[key] = past
        self._pasts.move_to_end(key)

    def forget_oldest(self) -> Past:
        """Forget the prefix that was used longest ago, and return what was known of it."""
        return self._pasts.popitem(last=False)[1]

    def unused(self, now: float) -> Iterator[tuple[int, float]]:
        """Yield each prefix's kind, and the seconds since its last use."""
        for past in self._pasts.values():
            yield past.kind, now - past.last_used
