"""What lies in the lower tier, as the owner of the cache sees it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from prefixcache.index.core import Core
from prefixcache.index.lease import Lease
from prefixcache.index.locations import AwayBlocks
from prefixcache.index.namespaces import Namespace
from prefixcache.index.published import Passed
from prefixcache.index.tokens import Packed, n_tokens


class Outlook(NamedTuple):
    """What a prompt would find now, in whole blocks."""

    n_blocks: int  # on the device
    away: tuple[AwayBlocks, ...]  # what comes next, in the lower tier
    passage: Passed | None  # the published prompt that it would begin with

    @property
    def n_known(self) -> int:
        """Blocks on the device and those that come next."""
        return self.n_blocks + sum(part.n_blocks for part in self.away)


class Copies:
    """Prefixes that have left the device and stay known."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def away(self, lease: Lease, tokens: Packed) -> list[AwayBlocks]:
        """Return what of `tokens` comes next after what a request has stored, in the lower tier.

        To use it, load it into the lease's blocks for these positions and commit. Changes nothing.

        Raises:
            LeaseError: the lease was released.
        """
        self._core.leases.require_live(lease)
        return self._core.locations.after(lease.node, memoryview(tokens), lease.n_stored)

    def outlook(self, namespace: Namespace, tokens: Packed) -> Outlook:
        """Return what `acquire` would find, and `away` after it. Changes nothing. A look-up."""
        core, end = self._core, n_tokens(tokens) - 1
        root = core.forest.root_to_look_in(namespace)
        match, way = core.admission.find(root, tokens, end)
        passage = None if way is None else Passed(way.published, way.through.n_blocks)
        away: list[AwayBlocks] = []
        is_at_end = match.edge_blocks == match.node.n_blocks
        if is_at_end and (way is None or way.mount is not None):
            n_bytes = end // core.block.n_tokens * core.block.n_bytes
            seen = memoryview(tokens)[:n_bytes]
            away = core.locations.after(match.node, seen, match.n_blocks)
        return Outlook(match.n_blocks, tuple(away), passage)

    def seen(self, group: int, position: int) -> tuple[range, range]:
        """Return which blocks of a layer group the token at `position` sees: lead, and the rest."""
        is_window, index = self._core.places[group]
        end = -(-position // self._core.block.n_tokens)
        if not is_window:
            return range(0), range(end)
        windows = self._core.windows
        n_lead = min(windows.lead_blocks[index], end)
        return range(n_lead), range(max(windows.first_visible(index, position), n_lead), end)

    def skip_to(self, lease: Lease, n_tokens: int) -> None:
        """Have room in the window groups for what the token after `n_tokens` sees, and for itself.

        What lies before that and is not there yet will not be written: the first `n_tokens` are
        loaded, and committed in one. Without window groups nothing happens.

        Raises:
            PoolExhaustedError: a window group has too little room. Nothing has changed.
            LeaseError: the lease was released.
        """
        core = self._core
        core.leases.require_live(lease)
        if lease.window_hold is not None:
            core.windows.skip(lease.window_hold, lease.node, n_tokens, core.keeper.reclaim)

    def count_loaded(self, lease: Lease, n_tokens: int, *, n_prompt: int) -> None:
        """Note that a request's first `n_tokens` tokens are there and were not computed.

        Their whole blocks are committed; the last one may be the request's own until it is full.

        They count as cached, and not as written. With no more than a block of its `n_prompt`
        tokens left it has missed nothing.

        Raises:
            LeaseError: the lease was released.
        """
        self._core.leases.require_live(lease)
        n_more = n_tokens - lease.cached_tokens
        is_whole = n_prompt - n_tokens <= lease.block_tokens
        reason = lease.miss_reason if is_whole else None
        if reason is not None:
            lease.miss_reason = None
        lease.root.tally.find_more(n_more, reason)
        lease.cached_tokens, lease.n_written = n_tokens, 0

    def forget(self, handle: Hashable) -> None:
        """Note that the lower tier has lost a copy. What lay only there, and below, is forgotten.

        An unknown handle is ignored. Cost: what is forgotten.
        """
        self._core.keeper.forget_copy(handle)
