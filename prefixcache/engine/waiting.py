"""Those who wait to be admitted, and whose turn it is."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from prefixcache.engine.fairness import TenantShares
from prefixcache.engine.ordering import AdmissionOrder
from prefixcache.engine.sequence import Sequence


class WaitingQueue:
    """All who wait, in order of arrival; `Turns` is the order in which they are admitted."""

    def __init__(self, order: AdmissionOrder, tenants: TenantShares, *, max_overtakes: int) -> None:
        self.order = order
        self.tenants = tenants
        self.max_overtakes = max_overtakes
        self._waiting: dict[Sequence, int] = {}  # and the tokens that it waited with
        self._serials = count()
        self.n_tokens = 0  # prompt and output of all who wait

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    @property
    def n_new(self) -> int:
        """Those who were never admitted and wait for no one who runs: a queue that has grown."""
        return sum(not sequence.is_spared for sequence in self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a new request wait."""
        sequence.serial = next(self._serials)
        self.tenants.enter(sequence.request.tenant)
        self._enter(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Let one who was preempted wait: before all of its priority who never ran."""
        self._enter(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take one out: it was admitted, or has ended."""
        self.n_tokens -= self._waiting.pop(sequence)
        self.order.forget(sequence)

    def must_be_next(self, sequence: Sequence) -> bool:
        """Whether nobody may pass it: as many as may have, or its answer has begun."""
        return sequence.n_overtaken >= self.max_overtakes or sequence.cached_tokens is not None

    def _enter(self, sequence: Sequence) -> None:
        self._waiting[sequence] = sequence.n_tokens
        self.n_tokens += sequence.n_tokens


class Turns:
    """One pass over those who wait: each is offered at most once.

    The lowest priority number comes first; of those, who was preempted; then the tenant that has
    had least, which changes as its requests are admitted; of a tenant, who was overtaken as often
    as may be, then whom the order ranks first, then who came first.
    """

    def __init__(self, queue: WaitingQueue) -> None:
        queue.order.look(queue)
        self._queue = queue
        self._passed: list[Sequence] = []  # offered in vain
        self._levels: list[int] = []  # a heap of the priorities that have somebody left
        self._resumed: defaultdict[int, deque[Sequence]] = defaultdict(deque)
        self._fresh: defaultdict[int, dict[str, deque[Sequence]]] = defaultdict(dict)
        self._sort()

    def next(self) -> Sequence | None:
        """Return whose turn it is; None: all were offered, or one may not be passed any more.

        Cost: the tenants who wait, and those who wait of one of them.
        """
        if any(map(self._queue.must_be_next, self._passed)):
            return None
        while self._levels:
            level = self._levels[0]
            if self._resumed[level]:
                return self._resumed[level].popleft()
            tenants = self._fresh[level]
            if tenants:
                return self._take(tenants)
            heappop(self._levels)
        return None

    def pass_over(self, sequence: Sequence) -> None:
        """Note that one was offered and cannot be admitted now: who is admitted later passes it."""
        self._passed.append(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Take one out of the queue, and count it for those whom it passes. Cost: all who wait."""
        self._queue.remove(sequence)
        is_new = sequence.cached_tokens is None  # else it comes back to what it had
        for other in self._queue:
            if is_new and other.is_before(sequence) and other not in self._passed:
                other.n_overtaken += 1
        for other in self._passed:
            other.n_overtaken += 1

    def _take(self, tenants: dict[str, deque[Sequence]]) -> Sequence:
        shares = self._queue.tenants
        tenant = min(tenants, key=lambda name: (shares.had(name), tenants[name][0].serial))
        own = tenants[tenant]
        urgent = filter(self._queue.must_be_next, own)  # some since this pass began
        sequence = min(urgent, key=lambda each: each.serial, default=own[0])
        own.remove(sequence)
        if not tenants[tenant]:
            del tenants[tenant]
        return sequence

    def _sort(self) -> None:
        queue = self._queue

        def place(sequence: Sequence) -> tuple[bool, int, int]:
            if queue.must_be_next(sequence):
                return False, 0, sequence.serial
            return True, queue.order.rank(sequence), sequence.serial

        for sequence in sorted(queue, key=place):
            level = sequence.request.priority
            if level not in self._resumed:
                heappush(self._levels, level)
                self._resumed[level] = deque()
            if sequence.cached_tokens is not None:
                self._resumed[level].append(sequence)
            else:
                tenant = sequence.request.tenant
                self._fresh[level].setdefault(tenant, deque()).append(sequence)
        for level in self._levels:
            self._resumed[level] = deque(sorted(self._resumed[level], key=lambda s: s.serial))
