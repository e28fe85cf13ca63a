"""Twins: requests that wait for a prefix that another one is computing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from prefixcache.index.lease import Lease, LeaseBook
from prefixcache.index.tokens import TOKEN_BYTES, Packed, common_prefix_tokens
from prefixcache.index.tree import Match


class Waiter:
    """A request that waits for a leader's blocks and pins nothing meanwhile.

    It is `is_ready` when the leader has stored all that both prompts share, or when it is
    elected to go on itself because the leader ended before that. Its owner then acquires with it,
    or leaves.
    """

    __slots__ = ("heir", "is_ready", "leader", "n_tokens", "priority", "serial", "tokens")

    def __init__(self, tokens: bytes, priority: int, serial: int) -> None:
        self.tokens = tokens
        self.priority = priority
        self.serial = serial
        self.leader: Lease | None = None
        self.heir: Waiter | None = None  # who was elected and is to be the next leader
        self.n_tokens = 0  # that it will find cached when the leader has stored them
        self.is_ready = False


class InFlight:
    """Who waits for which running request.

    A leader is a lease that is exactly where the waiter's own match ends, and about to go on with
    the same block. Nothing is noted for a request that nobody waits for.
    """

    def __init__(self, leases: LeaseBook, block_tokens: int) -> None:
        self._leases = leases
        self._block_tokens = block_tokens
        self.waiters: dict[Lease, dict[Waiter, None]] = {}  # by leader
        self._heirs: dict[Waiter, dict[Waiter, None]] = {}
        self._serials = count()

    def twin(self, match: Match, tokens: Packed, end: int) -> tuple[Lease, int] | None:
        """Return the lease that will store most of what comes after a match, and up to where.

        That is a number of tokens from position 0, in whole blocks. Changes nothing. Cost: the live
        leases, and one comparison of memory for each that stands at the match's end.
        """
        if match.edge_blocks < match.node.n_blocks:
            return None  # the prompt leaves the node midway, where no lease can end
        best: tuple[Lease, int] | None = None
        most = match.n_blocks * self._block_tokens
        for lease in self._leases:
            if lease.node is match.node and lease.prompt:
                n_shared = self._shared_tokens(lease, tokens, end)
                if n_shared > most:
                    best, most = (lease, n_shared), n_shared
        return best

    def moved(self, lease: Lease) -> None:
        """`lease` has stored more: wake those who waited for just that. Cost: its waiters."""
        stored = lease.n_stored * self._block_tokens
        for waiter in list(self.waiters.get(lease, ())):
            if stored >= waiter.n_tokens:
                waiter.is_ready = True
                self.leave(waiter)

    def ended(self, lease: Lease) -> None:
        """`lease` stores no more: one of its waiters goes on, the others wait for that one."""
        waiters = self.waiters.pop(lease, None)
        if waiters:
            for waiter in waiters:
                waiter.leader = None
            self._elect(waiters)

    def wait(self, leader: Lease, n_tokens: int, tokens: bytes, priority: int) -> Waiter:
        """Enter a waiter for the leader's first `n_tokens` tokens."""
        waiter = Waiter(tokens, priority, next(self._serials))
        self._follow(waiter, leader, n_tokens)
        return waiter

    def leave(self, waiter: Waiter, lease: Lease | None = None) -> None:
        """End a wait. `lease`: what it acquired; who waited for it to do so follows that.

        Leaving twice is harmless.
        """
        if waiter.leader is not None:
            self.waiters[waiter.leader].pop(waiter, None)
            if not self.waiters[waiter.leader]:
                del self.waiters[waiter.leader]
            waiter.leader = None
        if waiter.heir is not None:
            self._heirs[waiter.heir].pop(waiter, None)
            waiter.heir = None
        followers = self._heirs.pop(waiter, {})
        for follower in followers:
            follower.heir = None
        if lease is None:
            self._elect(followers)
            return
        for follower in followers:
            end = len(follower.tokens) // TOKEN_BYTES - 1
            n_shared = self._shared_tokens(lease, follower.tokens, end)
            if lease.prompt and n_shared > lease.n_stored * self._block_tokens:
                self._follow(follower, lease, n_shared)
            else:
                follower.is_ready = True

    def priority(self, lease: Lease) -> int:
        """Return the highest priority among a leader and those who wait for it."""
        waiters = self.waiters.get(lease, ())
        return max((lease.priority, *(waiter.priority for waiter in waiters)))

    def leaders(self) -> Iterator[Lease]:
        """Yield the leases that somebody waits for."""
        return iter(self.waiters)

    def _shared_tokens(self, lease: Lease, tokens: Packed, end: int) -> int:
        shared = min(common_prefix_tokens(lease.prompt, 0, tokens, 0), end)
        return shared // self._block_tokens * self._block_tokens

    def _follow(self, waiter: Waiter, leader: Lease, n_tokens: int) -> None:
        waiter.leader, waiter.n_tokens = leader, n_tokens
        self.waiters.setdefault(leader, {})[waiter] = None

    def _elect(self, waiters: dict[Waiter, None]) -> None:
        if not waiters:
            return
        heir = min(waiters, key=lambda waiter: (-waiter.priority, waiter.serial))
        heir.is_ready = True
        followers = {waiter: None for waiter in waiters if waiter is not heir}
        for waiter in followers:
            waiter.heir = heir
        self._heirs[heir] = followers
