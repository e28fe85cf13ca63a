"""What an eviction policy sees of a node."""

from __future__ import annotations


class Entry:
    """The fields of a node that a policy may read, and the two links that are the policy's own.

    Times are in seconds of the cache's clock. A node's hits, last use and priority are never
    below those of a node under it.
    """

    __slots__ = (
        "created",
        "edge",
        "end_block",
        "hits",
        "last_used",
        "n_blocks",
        "n_resident",
        "newer",
        "older",
        "priority",
    )

    def __init__(
        self, n_blocks: int, end_block: int, now: float, priority: int = 0, edge: bytes = b""
    ) -> None:
        self.edge = edge  # its tokens, packed; the first ones may go while it is listed
        self.n_blocks = n_blocks  # the length of its edge; may shrink while it is listed
        self.end_block = end_block  # blocks from position 0 to its end
        self.created = self.last_used = now  # last_used: when its last pin went
        self.priority = priority  # the highest of the requests that used it
        self.hits = 0  # requests that found it cached
        self.n_resident = 0  # children with KV on the device; 0: it is a leaf
        self.older: Entry | None = None  # the policy's own, None while it is not listed
        self.newer: Entry | None = None
