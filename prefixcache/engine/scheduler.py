"""Who runs in the next step: decodes first, then prompts in order of arrival."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from prefixcache.config import EngineConfig
from prefixcache.engine.budget import StepBudget
from prefixcache.engine.sequence import Sequence
from prefixcache.errors import PoolExhaustedError
from prefixcache.index import Lease, PrefixCache


@dataclass(frozen=True, slots=True)
class Share:
    """A sequence's part of a step: its next `n_tokens` tokens."""

    sequence: Sequence
    n_tokens: int


class Scheduler:
    """Admits, continues, preempts and lets go.

    A request is admitted when its whole prompt and one block more have room; its prefix is
    matched and pinned in that moment, never before. When a running request can grow no more,
    the youngest gives its room back and waits at the head of the queue; what it has computed
    stays in the tree as long as there is room. The oldest is never preempted, so work goes on.

    A request whose prompt goes on like one that is being read now waits for that one's blocks, and
    lets those behind it pass: it is admitted when they are stored, or when their reader ends.
    """

    def __init__(self, cache: PrefixCache, config: EngineConfig, budget: StepBudget) -> None:
        self._cache = cache
        self._config = config
        self._budget = budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission
        self.preemptions_total = 0

    def schedule(self) -> tuple[list[Share], list[Sequence]]:
        """Return the step's shares and the sequences admitted for the first time.

        Every share has room for its tokens' KV. Changes leases, never tokens.
        """
        shares = self._decodes()
        used = 0  # of the budget, which is the prompts' alone: decodes never stop a prompt
        for sequence in self.running:
            if sequence.n_pending > 1:
                used += self._continue(sequence, used, shares)
        admitted = []
        for sequence in list(self.waiting):
            if not self._may_admit(used):
                break
            if self._waits_for_twin(sequence):
                continue
            if not self._admit(sequence):
                break
            self.waiting.remove(sequence)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = sequence.n_computed
                admitted.append(sequence)
            used += self._continue(sequence, used, shares)
        return shares, admitted

    def let_go(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take a sequence out, wherever it is.

        `keep`: what it has computed may stay cached; False where that cannot be trusted.
        """
        sequence.has_ended = True
        if sequence.lease is None:
            self.waiting.remove(sequence)
            if sequence.waiter is not None:
                self._cache.twins.leave(sequence.waiter)
            return
        self.running.remove(sequence)
        self._give_back(sequence, sequence.lease, keep=keep)

    def _may_admit(self, used: int) -> bool:
        return (
            len(self.running) < self._config.max_running_requests
            and self._budget.share(1, used) > 0
        )

    def _reads(self, sequence: Sequence) -> bool:
        return self._config.prefix_cache and sequence.request.read_cache

    def _waits_for_twin(self, sequence: Sequence) -> bool:
        if sequence.waiter is None and self.running and self._reads(sequence):
            tokens = sequence.packed(sequence.n_tokens)
            sequence.waiter = self._cache.twins.wait(sequence.namespace, tokens)
        return sequence.waiter is not None and not sequence.waiter.is_ready

    def _decodes(self) -> list[Share]:
        """Give every decoding sequence room for its next token, the oldest first."""
        shares = []
        for sequence in list(self.running):
            if sequence.lease is None or sequence.n_pending != 1:
                continue  # preempted for an older one, or still reading its prompt
            if self._grow(sequence, sequence.lease):
                shares.append(Share(sequence, 1))
        return shares

    def _grow(self, sequence: Sequence, lease: Lease) -> bool:
        """Make room for one token; False when the sequence itself had to give way."""
        while True:
            try:
                self._cache.extend(lease, sequence.n_tokens, most_tokens=sequence.most_tokens)
            except PoolExhaustedError:
                youngest = self.running[-1]
                self._preempt(youngest)
                if youngest is sequence:
                    return False
            else:
                return True

    def _preempt(self, sequence: Sequence) -> None:
        assert sequence.lease is not None
        self.running.remove(sequence)
        self._give_back(sequence, sequence.lease, keep=True)
        sequence.n_computed = 0
        self.waiting.appendleft(sequence)
        self.preemptions_total += 1

    def _give_back(self, sequence: Sequence, lease: Lease, *, keep: bool) -> None:
        if keep:
            self._cache.commit(lease, sequence.packed(sequence.n_computed))
        self._cache.release(lease)
        sequence.lease = None

    def _admit(self, sequence: Sequence) -> bool:
        """Pin what is cached and make room for the rest; False when there is none now."""
        try:
            lease = self._cache.acquire(
                sequence.namespace,
                sequence.packed(sequence.n_tokens),
                room_tokens=int(len(sequence.output) + 1 < sequence.max_tokens),
                read=self._reads(sequence),
                store=self._config.prefix_cache and sequence.request.store_cache,
                waiter=sequence.waiter,
            )
        except PoolExhaustedError:
            return False
        sequence.lease, sequence.waiter = lease, None
        sequence.n_admitted = sequence.n_tokens
        sequence.n_computed = lease.cached_tokens
        self.running.append(sequence)
        return True

    def _continue(self, sequence: Sequence, used: int, shares: list[Share]) -> int:
        n_tokens = self._budget.share(sequence.n_feedable, used)
        if n_tokens:
            shares.append(Share(sequence, n_tokens))
        return n_tokens
