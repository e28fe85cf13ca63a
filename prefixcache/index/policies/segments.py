"""Two parts of a cache: one is kept for what was found cached before."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.errors import ConfigError
from prefixcache.index.entry import Entry
from prefixcache.index.policies.links import EntryList, unlink

DEFAULT_SHARE = 0.25  # why: prefixcache/design/0006-eviction-policies.md


class Segments:
    """Entries that were hit are protected, up to a share of all listed blocks; the rest is not.

    What is not protected is on probation. When the protected part holds more than its share, the
    entries that were used longest ago go on probation, as if they had just been used. Blocks are
    counted as of an entry's coming in. A child stands before its parent in each part, and is
    never hit more often than it: so the children of an entry on probation are on probation too,
    and the oldest entry of either part is a leaf, of the protected one where the other is empty.

    Raises:
        ConfigError: `protected_share` is not above 0 and at most 1.
    """

    def __init__(self, protected_share: float) -> None:
        if not 0 < protected_share <= 1:
            raise ConfigError("protected_share", protected_share, "must be above 0 and at most 1")
        self._share = protected_share
        self.probation = EntryList()
        self.protected = EntryList()
        self._blocks: dict[Entry, int] = {}  # of every listed entry
        self._n_blocks = 0
        self._protected_entries: set[Entry] = set()
        self._n_protected_blocks = 0

    def enter(self, entry: Entry) -> Sequence[Entry]:
        """List `entry`, and return what goes on probation for it. O(1), amortised.

        That is the entry itself if it was never hit, else those that have to make room for it.
        """
        n_blocks = self._blocks[entry] = entry.n_blocks
        self._n_blocks += n_blocks
        if not entry.hits:
            self.probation.append(entry)
            return (entry,)
        self.protected.append(entry)
        self._protected_entries.add(entry)
        self._n_protected_blocks += n_blocks
        return self._overflow()

    def leave(self, entry: Entry) -> None:
        """Take `entry` off its list; one that is not listed is ignored. O(1)."""
        n_blocks = self._blocks.pop(entry, None)
        if n_blocks is None:
            return
        unlink(entry)
        self._n_blocks -= n_blocks
        if entry in self._protected_entries:
            self._forget_protected(entry, n_blocks)

    def _overflow(self) -> list[Entry]:
        most = self._share * self._n_blocks
        entries = []
        while self._n_protected_blocks > most and (entry := self.protected.oldest) is not None:
            unlink(entry)
            self._forget_protected(entry, self._blocks[entry])
            self.probation.append(entry)
            entries.append(entry)
        return entries

    def _forget_protected(self, entry: Entry, n_blocks: int) -> None:
        self._protected_entries.remove(entry)
        self._n_protected_blocks -= n_blocks
