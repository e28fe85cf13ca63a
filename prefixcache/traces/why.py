"""Why a trace hits as it does: what is shared, by whom, how soon, and where prompts part."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prefixcache.traces.curve import MissRatioCurve, miss_ratio_curve
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.whatif.published import PrefixCounts, SharedPrefix

PARTS = ("goes on", "at least 3/4", "at least half", "less than half", "nothing")
_MAX_CONVERSATIONS = 100_000  # whose last prompts are remembered


@dataclass(frozen=True, slots=True)
class Why:
    """What was found of a trace, as if nothing were ever given up and tenants shared all."""

    shared: Sequence[SharedPrefix]  # those that save most
    distances: Sequence[tuple[int, int]]  # (capacity, hits that need no more than that), doubling
    pauses: Sequence[tuple[int, int]]  # (seconds, hit blocks last used at most so long ago)
    hit_blocks: int
    own_hit_blocks: int | None  # in the prompt before, of the same conversation; None: not known
    kept: Sequence[tuple[str, int]]  # how much of the prompt before a turn keeps: turns, by PARTS
    tenants: Sequence[tuple[str, int, int]]  # (tenant, blocks, hit blocks), most blocks first


def explain(requests: Iterable[TraceRequest], *, n_prefixes: int = 10) -> Why:
    """Look at a whole trace.

    Cost: memory for all blocks of the trace; time as for two replays.
    """
    watched = _Watch()
    curve = miss_ratio_curve(watched.passing(requests))
    return watched.found(curve, n_prefixes)


class _Watch:
    """Looks at requests as they pass by."""

    def __init__(self) -> None:
        self._counts = PrefixCounts()
        self._used: dict[int, float] = {}  # when each block was used last
        self._pauses: Counter[int] = Counter()
        self._turns = Turns()
        self._hit_blocks = 0
        self._own_hit_blocks = 0
        self._tenants: dict[str, list[int]] = {}

    def passing(self, requests: Iterable[TraceRequest]) -> Iterable[TraceRequest]:
        """Yield the requests."""
        for request in requests:
            self._look(request)
            yield request

    def found(self, curve: MissRatioCurve, n_prefixes: int) -> Why:
        """Return what was seen."""
        by_size = sorted(self._tenants.items(), key=lambda item: -item[1][0])
        return Why(
            shared=self._counts.top(n_prefixes),
            distances=list(_doubling(curve)),
            pauses=list(_summed(self._pauses)),
            hit_blocks=self._hit_blocks,
            own_hit_blocks=self._own_hit_blocks if self._turns.has_any else None,
            kept=[(part, self._turns.kept[part]) for part in PARTS],
            tenants=[(name, blocks, hits) for name, (blocks, hits) in by_size],
        )

    def _look(self, request: TraceRequest) -> None:
        self._counts.add(request)
        now, used = request.timestamp_seconds, self._used
        hit_blocks = 0
        for id in request.hash_ids:
            before = used.get(id)
            if before is None:
                break
            hit_blocks += 1
            self._pauses[max(int(now - before), 0).bit_length()] += 1
        used.update(dict.fromkeys(request.hash_ids, now))
        self._hit_blocks += hit_blocks
        self._own_hit_blocks += min(self._turns.n_own(request), hit_blocks)
        if request.tenant is not None:
            sums = self._tenants.setdefault(request.tenant, [0, 0])
            sums[0] += len(request.hash_ids)
            sums[1] += hit_blocks


class Turns:
    """What the turns of a conversation keep of the prompt before them.

    The last prompts of the `_MAX_CONVERSATIONS` conversations that spoke last are remembered.
    """

    def __init__(self) -> None:
        self.kept: Counter[str] = Counter()
        self.has_any = False  # whether the trace tells conversations apart
        self._last: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def n_own(self, request: TraceRequest) -> int:
        """Return how many leading blocks were in its conversation's prompt before, and note it."""
        name = request.conversation
        if name is None:
            return 0
        self.has_any = True
        before = self._last.pop(name, None)
        self._last[name] = request.hash_ids
        if len(self._last) > _MAX_CONVERSATIONS:
            self._last.popitem(last=False)
        if before is None:
            return 0
        n_own = n_common(before, request.hash_ids)
        self.kept[_part(n_own, len(before))] += 1
        return n_own


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading ids two prompts have in common."""
    for depth, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return depth
    return min(len(a), len(b))


def _part(n_kept: int, n_before: int) -> str:
    """Return how much of a prompt a turn kept. Its last block, seldom full, may differ."""
    if n_kept >= max(n_before - 1, 1) or not n_before:
        return PARTS[0]
    if not n_kept:
        return PARTS[4]
    share = n_kept / n_before
    return PARTS[1] if share >= 0.75 else PARTS[2] if share >= 0.5 else PARTS[3]


def _doubling(curve: MissRatioCurve) -> Iterable[tuple[int, int]]:
    capacity, most = 1, curve.hit_blocks(None)
    while True:
        hit_blocks = curve.hit_blocks(capacity)
        yield capacity, hit_blocks
        if hit_blocks == most:
            return
        capacity *= 2


def _summed(pauses: Counter[int]) -> Iterable[tuple[int, int]]:
    total = 0
    for bits in range(max(pauses, default=-1) + 1):
        total += pauses[bits]
        yield 2**bits, total
