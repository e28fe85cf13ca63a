"""Who runs in the next step: decodes first, then prompts, then those who wait for room."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from prefixcache.config import EngineConfig
from prefixcache.engine.budget import StepBudget
from prefixcache.engine.fairness import TenantShares
from prefixcache.engine.ordering import make_order
from prefixcache.engine.sequence import Sequence, reads_cache
from prefixcache.engine.shares import PromptShares, Share
from prefixcache.engine.tiers import Tiers
from prefixcache.engine.waiting import Turns, WaitingQueue
from prefixcache.engine.window_room import WindowRoom
from prefixcache.errors import PoolExhaustedError
from prefixcache.index import Lease, PrefixCache

VAIN_LOOKS_A_STEP = 16  # for room and for twins, so that a long queue costs no more
VAIN_LOOKS_A_TENANT = 4  # of these, at one that is at its quota: they count for it alone
MOST_WAITS = 8  # for one twin after another; then a request reads for itself


@dataclass(slots=True)
class Schedule:
    """One step: what is computed, who was admitted for the first time, and who cannot be."""

    shares: list[Share] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    failed: list[tuple[Sequence, Exception]] = field(default_factory=list)


class Scheduler:
    """Admits, continues, preempts and lets go.

    A request is admitted when its whole prompt and one block more have room and the step has
    tokens for it; its prefix is matched and pinned in that moment, never before. Who finds no room
    lets those behind it pass, `max_overtakes` times; then nobody behind it is admitted until it is.
    Nobody passes one who was preempted, for its answer has begun.

    When a running request can grow no more, the youngest of the lowest priority gives its room
    back and waits at the head of the queue; what it has computed stays in the tree as long as there
    is room. The oldest of the highest priority is never preempted, so work goes on. But who is
    within its tenant's reserve gives way for nobody else, and a tenant that holds as much as it
    may finds its victims, and stops those behind it, among its own requests alone.

    A request whose prompt goes on like one that is being read now waits for that one's blocks, and
    lets those behind it pass. It waits for who runs, never for who waits itself. So does one whose
    prompt is being read from a tier.
    """

    def __init__(
        self,
        cache: PrefixCache,
        config: EngineConfig,
        budget: StepBudget,
        windows: WindowRoom,
        tiers: Tiers,
    ) -> None:
        self._cache = cache
        self._tiers = tiers
        self._windows = windows
        self._config = config
        self._budget = budget
        self._most_running = min(config.max_running_requests, config.max_step_tokens)
        self.tenants = TenantShares()
        self.waiting = WaitingQueue(
            make_order(config.admission_order, self._cached_blocks),
            self.tenants,
            max_overtakes=config.max_overtakes,
        )
        self.admits_new = True  # False: only who was admitted before and preempted
        self.running: list[Sequence] = []  # in order of admission
        self.preemptions_total = 0

    def schedule(self) -> Schedule:
        """Return the next step. Every share has room for its tokens' KV.

        Changes leases, never tokens. Whoever is `failed` is still in, for `let_go`.
        """
        schedule = Schedule()
        self._decode(schedule)
        prompts = PromptShares(
            aim_tokens=self._budget.aim(len(schedule.shares)),
            most_tokens=self._budget.room(len(schedule.shares)),
            level=self._level,
        )
        for sequence in self.running:
            if sequence.n_pending > 1:
                prompts.add(sequence)
        if self.waiting and len(self.running) < self._most_running:
            self._admit_in_turn(schedule, prompts)
        schedule.shares += prompts.split()
        if self._windows.is_needed:
            self._fit_windows(schedule)
        return schedule

    def let_go(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take a sequence out, wherever it is.

        `keep`: what it has computed may stay cached; False where that cannot be trusted.
        """
        sequence.has_ended = True
        if sequence.lease is not None:
            self.running.remove(sequence)
            self._give_back(sequence, sequence.lease, keep=keep)
        else:
            self.waiting.remove(sequence)
            if sequence.waiter is not None:
                self._cache.twins.leave(sequence.waiter)
        self._tiers.leave(sequence)
        self.tenants.leave(sequence.request.tenant)

    def _admit_in_turn(self, schedule: Schedule, prompts: PromptShares) -> None:
        """Offer room to those who wait, one by one, until a step's worth of looks was in vain."""
        turns, n_vain = Turns(self.waiting), 0
        full: Counter[str] = Counter()  # looks in vain at tenants that hold as much as they may
        while n_vain < VAIN_LOOKS_A_STEP and len(self.running) < self._most_running:
            sequence = turns.next()
            if sequence is None:
                return
            if sequence.is_behind_twin or not (self.admits_new or sequence.has_begun):
                continue
            if full[sequence.request.tenant] >= VAIN_LOOKS_A_TENANT:
                continue
            if self._finds_twin(sequence):
                n_vain += 1
                continue
            if self._tiers.is_reading(sequence, is_idle=not self.running):
                continue
            must_be_next = self.waiting.must_be_next(sequence)
            has_share = must_be_next or prompts.has_share_for(sequence, self._n_to_read(sequence))
            if has_share and self._is_admitted(sequence, schedule, turns):
                prompts.add(sequence)
            elif has_share and sequence.is_at_quota:
                full[sequence.request.tenant] += VAIN_LOOKS_A_TENANT if must_be_next else 1
            elif must_be_next:
                return
            else:
                n_vain += 1
                turns.pass_over(sequence)

    def _is_admitted(self, sequence: Sequence, schedule: Schedule, turns: Turns) -> bool:
        """Admit one if there is room. One that there can never be room for has failed."""
        try:
            sequence.is_at_quota = False
            lease = self._acquire(sequence)
        except PoolExhaustedError as error:
            sequence.is_at_quota = error.by_quota
            return False
        except Exception as error:  # the edge: one request's trouble is not the others'
            schedule.failed.append((sequence, error))
            return False
        turns.admit(sequence)
        sequence.lease = lease
        sequence.n_admitted = sequence.n_tokens
        sequence.n_computed = lease.cached_tokens
        self.running.append(sequence)
        self.tenants.charge(sequence.request.tenant, sequence.n_pending)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.n_computed
            schedule.admitted.append(sequence)
        return True

    def _acquire(self, sequence: Sequence) -> Lease:
        """Return a new lease for a request, with what other tiers have for it."""
        self._windows.require_one()
        self._tiers.make_way(sequence)
        lease = self._lease(sequence)
        if not self._tiers.fill(sequence, lease):
            self._cache.release(lease)  # windows may have let go of what it needs without the rest
            lease = self._lease(sequence)
        self._tiers.admit(sequence, lease)
        return lease

    def _lease(self, sequence: Sequence) -> Lease:
        worth, waiter = _worth(sequence), sequence.waiter
        if sequence.published is not None:
            lease = self._cache.prompts.acquire(sequence.published, priority=worth, waiter=waiter)
        else:
            lease = self._cache.acquire(
                sequence.namespace,
                sequence.packed(sequence.n_tokens),
                room_tokens=int(len(sequence.output) + 1 < sequence.max_tokens),
                read=self.reads(sequence),
                store=self._config.prefix_cache and sequence.request.store_cache,
                priority=worth,
                waiter=waiter,
            )
        sequence.waiter = None
        if self._windows.is_needed:
            self._windows.enter(lease)
        return lease

    def _finds_twin(self, sequence: Sequence) -> bool:
        """Have one wait for whoever runs and reads what it begins with; False: nobody does.

        One who has waited looks again: its twin may be back, or another one ahead of it. So no one
        waits for a twin that waits itself, whose turn may be much later.
        """
        if not self.running or not self.reads(sequence) or sequence.n_waits >= MOST_WAITS:
            return False
        tokens = sequence.packed(sequence.n_tokens)
        twin = self._cache.twins.wait(sequence.namespace, tokens, priority=_worth(sequence))
        if twin is None:
            return False
        if sequence.waiter is not None:
            self._cache.twins.leave(sequence.waiter)
        sequence.waiter = twin
        sequence.n_waits += 1
        return True

    def reads(self, sequence: Sequence) -> bool:
        """Whether what is cached counts for a sequence."""
        return reads_cache(self._config, sequence)

    def _match_length(self, sequence: Sequence) -> int:
        if not self.reads(sequence):
            return 0
        tokens = sequence.packed(sequence.n_tokens)
        return self._cache.match_length(sequence.namespace, tokens)

    def _cached_blocks(self, sequence: Sequence) -> int:
        """Return how many whole blocks are cached: a few tokens alike are no reason to pass."""
        return self._match_length(sequence) // self._config.block_size_tokens

    def _n_to_read(self, sequence: Sequence) -> int:
        return sequence.n_tokens - self._match_length(sequence)

    def _level(self, sequence: Sequence) -> int:
        """Return its priority, or that of the most urgent of those who wait for what it reads."""
        if sequence.lease is None:
            return sequence.request.priority
        return -self._cache.twins.priority(sequence.lease)

    def _decode(self, schedule: Schedule) -> None:
        """Give every decoding sequence room for its next token, the oldest first."""
        for sequence in list(self.running):
            if sequence.lease is None or sequence.n_pending != 1:
                continue  # preempted for another one, or still reading its prompt
            try:
                has_room = self._grow(sequence, sequence.lease, schedule)
            except Exception as error:  # the edge: one request's trouble is not the others'
                schedule.failed.append((sequence, error))
                continue
            if has_room:
                schedule.shares.append(Share(sequence, 1))
                self.tenants.charge(sequence.request.tenant, 1)

    def _grow(self, sequence: Sequence, lease: Lease, schedule: Schedule) -> bool:
        """Make room for one token; False when the sequence itself had to give way."""
        while True:
            try:
                self._cache.extend(lease, sequence.n_tokens, most_tokens=sequence.most_tokens)
            except PoolExhaustedError as error:
                victim = self._victim_for(sequence, by_quota=error.by_quota)
                self._preempt(victim)
                schedule.shares = [each for each in schedule.shares if each.sequence is not victim]
                if victim is sequence:
                    return False
            else:
                return True

    def _fit_windows(self, schedule: Schedule) -> None:
        """Have room for every share where windows let go; the youngest give way for the oldest."""
        fitted = []
        for share in schedule.shares:
            found = None
            while share.sequence.lease is not None and found is None:
                found = self._windows.fitted(share)
                if found is None:
                    self._preempt(self._victim())
            if found is not None:
                fitted.append(found)
        schedule.shares = [share for share in fitted if share.sequence.lease is not None]

    def _victim(self) -> Sequence:
        """Return who gives way: of the lowest priority, the youngest."""
        return max(reversed(self.running), key=self._level)

    def _victim_for(self, sequence: Sequence, *, by_quota: bool) -> Sequence:
        """Return who gives way so that one can grow: of those whose room it could have."""
        tenant = sequence.request.tenant
        helping = [
            each
            for each in self.running
            if each.request.tenant == tenant
            or (not by_quota and self._cache.holds_beyond_reserve(each.request.tenant))
        ]
        return max(reversed(helping), key=self._level)

    def _preempt(self, sequence: Sequence) -> None:
        assert sequence.lease is not None
        self.running.remove(sequence)
        self._give_back(sequence, sequence.lease, keep=True)
        sequence.n_computed = 0
        sequence.written_before = sequence.written_tokens
        self.waiting.put_back(sequence)
        self.preemptions_total += 1

    def _give_back(self, sequence: Sequence, lease: Lease, *, keep: bool) -> None:
        if sequence.n_pending > 1:
            self.tenants.charge(sequence.request.tenant, -sequence.n_pending)
        if keep:
            self._cache.commit(lease, sequence.packed(sequence.n_computed))
            self._tiers.keep(sequence, lease)
        self._cache.release(lease)
        sequence.lease = None


def _worth(sequence: Sequence) -> int:
    """Return a priority as the index counts it: more is more."""
    return -sequence.request.priority
