"""Ids that stand for whole prefixes, also where a trace's own do not."""

from __future__ import annotations

from hashlib import blake2b

from prefixcache.traces.reading import FIRST_UNSHARED_ID
from prefixcache.traces.records import TraceRequest

_NO_PARENT = -1
_BITS = FIRST_UNSHARED_ID - 1


class PrefixIds:
    """Remembers which id each id first came after, and chains those that come after another one.

    An id stands for all that is before it as well. Where it follows two different ids, or itself,
    it cannot: from there on, the rest of that row gets ids made of the id before and its own.

    Args:
        most_known: so many ids are remembered; the oldest are forgotten, half of them at once.

    Cost: about 100 bytes an id that is remembered.
    """

    def __init__(self, *, most_known: int = 1_000_000) -> None:
        self._parents: dict[int, int] = {}
        self._most_known = most_known

    def consistent(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return `ids` themselves where they fit what was seen before, else a chained form."""
        if not ids or ids[0] >= FIRST_UNSHARED_ID:
            return ids
        before = (_NO_PARENT, *ids[:-1])
        known = tuple(map(self._parents.setdefault, ids, before))
        if len(self._parents) > self._most_known:
            self._forget()
        if known == before:
            return ids
        depth = next(i for i, parent in enumerate(known) if parent != before[i])
        return ids[:depth] + chained(ids[depth:], before[depth])

    def _forget(self) -> None:
        n_old = len(self._parents) // 2
        for id in list(self._parents)[:n_old]:
            del self._parents[id]


def chained(ids: tuple[int, ...], before: int = _NO_PARENT) -> tuple[int, ...]:
    """Return ids made of each id and all before it: equal where all of that is."""
    made = []
    for id in ids:
        before = hash((before, id, _BITS)) & _BITS
        made.append(before)
    return tuple(made)


def coarser(ids: tuple[int, ...], factor: int, *, has_partial: bool) -> tuple[int, ...]:
    """Return the ids of blocks `factor` times as large, for ids that stand for whole prefixes.

    Args:
        has_partial: whether a last block that is not full has an id.
    """
    whole = ids[factor - 1 :: factor]
    return (*whole, ids[-1]) if has_partial and len(ids) % factor else whole


def tenants_apart(request: TraceRequest) -> TraceRequest:
    """Return the request with ids that no other tenant's have; itself where it has no tenant."""
    if request.tenant is None:
        return request
    digest = blake2b(request.tenant.encode(), digest_size=8).digest()
    ids = chained(request.hash_ids, int.from_bytes(digest, "little") & _BITS)
    return request.with_ids(request.timestamp_seconds, ids, request.block_tokens)
