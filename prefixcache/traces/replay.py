"""A trace, read once, through several caches side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from prefixcache.errors import ConfigError
from prefixcache.index.policies import POLICY_NAMES, PolicyOptions, make_policy
from prefixcache.traces.capacity import Capacity
from prefixcache.traces.curve import infinite_cache
from prefixcache.traces.files import Progress
from prefixcache.traces.flat import flat_lru
from prefixcache.traces.lanes import IndexLane, Lane
from prefixcache.traces.optimum import optimum
from prefixcache.traces.prefix_ids import coarser
from prefixcache.traces.reading import ReadReport
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.sums import Simulation
from prefixcache.traces.tally import Counted, Period, Tally, Timeline, rates_of
from prefixcache.traces.trace import Trace

Compute = Callable[[Sequence[TraceRequest], int | None], Simulation]


def _belady(requests: Sequence[TraceRequest], capacity_blocks: int | None) -> Simulation:
    return optimum(requests, capacity_blocks=capacity_blocks)


def _flat_lru(requests: Sequence[TraceRequest], capacity_blocks: int | None) -> Simulation:
    if capacity_blocks is None:
        return infinite_cache(requests)
    return flat_lru(requests, capacity_blocks=capacity_blocks)


COMPUTED: Mapping[str, Compute] = MappingProxyType({"belady": _belady, "flat-lru": _flat_lru})
POLICIES = (*POLICY_NAMES, *COMPUTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What a trace is to be run through: each policy at each capacity and block size.

    Policies of the index run request by request, and the trace is never held. Those of `COMPUTED`
    know it whole: they hold it.
    """

    policies: Sequence[str] = ("lru",)
    capacities: Sequence[Capacity] = (Capacity(),)
    block_tokens: Sequence[int | None] = (None,)  # None: as the trace has it
    options: PolicyOptions = field(default_factory=PolicyOptions)
    warm_up_requests: int = 0  # they fill the caches and are left out of `after_warm_up`

    def __post_init__(self) -> None:
        for name in self.policies:
            if name not in POLICIES:
                raise ConfigError("policy", name, f"must be one of {', '.join(POLICIES)}")


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One policy at one capacity on one trace."""

    trace: str
    policy: str
    capacity_blocks: int | None  # None: unlimited
    block_tokens: int
    counted: Counted
    warm_up_requests: int = 0  # that were left out of `after_warm_up`
    after_warm_up: Counted | None = None  # None: nothing was left out, or it is not known
    periods: Sequence[Period] = ()


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of a trace."""

    trace: Trace
    time_unit: str
    block_tokens: int
    report: ReadReport
    rows: Sequence[ReplayRow]

    @property
    def tokenizer(self) -> str | None:
        """What made tokens of the trace's text; None: it has none."""
        if not self.trace.format.has_text:
            return None
        encoder = self.trace.options.encoder
        return "of the given tokenizer" if encoder else "stand-in: four bytes of UTF-8 each"


def replay(trace: Trace, plan: ReplayPlan, *, progress: Progress | None = None) -> ReplayResult:
    """Read a trace and run it through every cache of the plan.

    Raises:
        TraceError: the trace cannot be read.
        ConfigError: a capacity or block size does not go with the trace's blocks.

    Cost: for each policy of the index and capacity about a millisecond per ten requests.
    """
    reading = trace.read(progress)
    runs: list[_Run] = []
    kept: list[TraceRequest] = []
    is_kept = any(name in COMPUTED for name in plan.policies)
    block_tokens = 0
    for request in reading:
        if not runs:
            block_tokens = request.block_tokens
            runs = _runs(trace, plan, block_tokens)
        for run in runs:
            run.add(request)
        if is_kept:
            kept.append(request)
    rows = [run.row(kept) for run in runs]
    return ReplayResult(trace, reading.time_unit, block_tokens, reading.report, rows)


class _Run:
    """One cache and what is counted of it."""

    def __init__(
        self,
        trace: Trace,
        plan: ReplayPlan,
        policy: str,
        capacity: Capacity,
        block_tokens: int,
        factor: int,
    ) -> None:
        self._trace, self._plan, self._policy = trace, plan, policy
        self._block_tokens, self._factor = block_tokens, factor
        self._capacity_blocks = capacity.in_blocks(block_tokens)
        self._lane: Lane | None = None
        if policy not in COMPUTED:
            maker = partial(make_policy, policy, plan.options)
            self._lane = IndexLane(maker, self._capacity_blocks)
        self._tally, self._after, self._timeline = Tally(), Tally(), Timeline()
        self._n_seen = 0

    def add(self, request: TraceRequest) -> None:
        """Run a request through the cache and count it."""
        if self._lane is None:
            return
        request = self._resized(request)
        hit_blocks = self._lane.serve(request)
        self._tally.add(request, hit_blocks)
        self._timeline.add(request, hit_blocks)
        self._n_seen += 1
        if self._n_seen > self._plan.warm_up_requests > 0:
            self._after.add(request, hit_blocks)

    def row(self, kept: Sequence[TraceRequest]) -> ReplayRow:
        """Return what was counted, or computed from all requests."""
        head = (self._trace.name, self._policy, self._capacity_blocks, self._block_tokens)
        if self._lane is None:
            resized = [self._resized(request) for request in kept]
            sums = COMPUTED[self._policy](resized, self._capacity_blocks)
            return ReplayRow(*head, Counted(sums, rates_of(sums)))
        n_left_out = min(self._plan.warm_up_requests, self._n_seen)
        after = self._after.counted() if n_left_out else None
        counted, periods = self._tally.counted(), self._timeline.periods()
        return ReplayRow(*head, counted, n_left_out, after, periods)

    def _resized(self, request: TraceRequest) -> TraceRequest:
        if self._factor == 1:
            return request
        has_partial = self._trace.format.has_partial_ids
        ids = coarser(request.hash_ids, self._factor, has_partial=has_partial)
        return request.with_ids(request.timestamp_seconds, ids, self._block_tokens)


def _runs(trace: Trace, plan: ReplayPlan, own_tokens: int) -> list[_Run]:
    runs = []
    for wanted in plan.block_tokens:
        factor, rest = divmod(wanted or own_tokens, own_tokens)
        if rest or not factor:
            reason = f"must be a multiple of the trace's own {own_tokens}"
            raise ConfigError("block_tokens", wanted, reason)
        size = factor * own_tokens
        runs += [
            _Run(trace, plan, policy, capacity, size, factor)
            for capacity in plan.capacities
            for policy in plan.policies
        ]
    return runs
