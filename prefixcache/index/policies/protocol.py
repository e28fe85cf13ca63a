"""The bargain between the cache and what chooses its victims."""

from __future__ import annotations

from typing import Protocol

from prefixcache.index.entry import Entry


class EvictionPolicy(Protocol):
    """Orders the entries of one tenant that nobody uses; it frees nothing itself.

    The cache promises serial calls; that entries which are listed together are added children
    before parents; and that the fields of a listed entry stay as they are, but for `n_blocks` and
    `end_block`, which may shrink, and `n_resident`. The policy promises amortised O(log n) per
    call, to read no other field, and to keep no entry that is not listed. `older` and `newer` are
    its own: both set while an entry is listed (to the entry itself if it needs no list), else None.
    """

    def add(self, entry: Entry) -> None:
        """`entry` is used by nobody now. It is listed until it is discarded."""

    def discard(self, entry: Entry) -> None:
        """`entry` is used again or has left the tree. One that is not listed is ignored."""

    def expose(self, entry: Entry) -> None:
        """`entry` is listed and has become a leaf: its last child with KV on the device left."""

    def victim(self, now: float) -> Entry | None:
        """Return the listed leaf to give up next, or None when there is none."""

    def overdue(self, now: float) -> Entry | None:
        """Return a listed leaf that should go even though there is room, or None."""
