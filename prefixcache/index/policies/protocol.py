"""What the cache asks of an eviction policy, and what it promises in return."""

from __future__ import annotations

from typing import Protocol

from prefixcache.index.entry import Entry


class EvictionPolicy(Protocol):
    """Orders the entries of one tenant that nobody uses; it frees nothing itself.

    The cache promises serial calls; that an entry is added only while it is not listed; that
    an entry's hits, last_used and priority are never below those of an entry under it; that
    entries which are listed together are added children before parents; and that the fields of a
    listed entry stay as they are, but for n_blocks, end_block and edge, which may shrink, and
    n_resident.

    The policy promises O(log n) per call, amortised over all calls; to read nothing but an entry's
    fields; that `older` and `newer`, which are its own, are None exactly while an entry is not
    listed; and that `victim`, asked and obeyed often enough, names every listed entry.
    """

    def add(self, entry: Entry) -> None:
        """`entry` is used by nobody now. It is listed until it is discarded."""

    def discard(self, entry: Entry) -> None:
        """`entry` is used again or has left the tree. One that is not listed is ignored."""

    def expose(self, entry: Entry) -> None:
        """`entry` is listed and has become a leaf: its last child with KV on the device left."""

    def victim(self, now: float) -> Entry | None:
        """Return the next leaf to give up, still listed, or None when none is listed.

        `now` is the cache's clock in seconds; it never goes back.
        """

    def overdue(self, now: float) -> Entry | None:
        """Return a leaf that should go although there is room, or None."""
