"""Hash ids as the token ids of a cache whose blocks are one token long."""

from __future__ import annotations

from collections.abc import Iterable

from prefixcache.index import pack

_END = 0  # stands for what comes after the last block, and is never stored


class BlockTokens:
    """Numbers hash ids in the order in which they come, from 1 on.

    An id stands for the whole prefix up to its block, so one token for a block is exact.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def prompt(self, hash_ids: Iterable[int]) -> bytes:
        """Return the ids as packed tokens, and one more that no block has.

        A look-up leaves at least one token to compute; the last one is there for that.
        """
        known = self._tokens
        return pack([*(known.setdefault(id, len(known) + 1) for id in hash_ids), _END])
