"""What Prometheus reads: a registry of our own, filled by the gateway and by engine statistics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gateway.admission import Outcome
from gateway.histogram import LoopHistogram
from gateway.tier_metrics import tier_metrics
from prefixcache.types import EngineStats, Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST
OTHER_TENANTS = "other"

_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_MOST_RECENT = 4096  # first tokens between two looks at them: for quantiles, that is plenty
_BETWEEN_TOKENS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class _Shown(NamedTuple):
    """A field of EngineStats, the name it is exposed by and what it means."""

    field: str
    name: str
    help: str


_COUNTERS = (
    _Shown("prompt_tokens_total", "prefixcache_prompt_tokens", "Tokens of admitted prompts"),
    _Shown("cached_tokens_total", "prefixcache_cached_tokens", "Prompt tokens found in the cache"),
    _Shown("computed_tokens_total", "prefixcache_computed_tokens", "Tokens fed to the model"),
    _Shown("output_tokens_total", "prefixcache_output_tokens", "Tokens generated"),
    _Shown("evicted_blocks_total", "prefixcache_evicted_blocks", "Cached KV blocks given up"),
    _Shown("preemptions_total", "prefixcache_preemptions", "Running requests put back to wait"),
    _Shown("moved_blocks_total", "prefixcache_moved_blocks", "KV blocks moved to lie together"),
    _Shown("drafted_tokens_total", "prefixcache_drafted_tokens", "Output tokens that were guessed"),
    _Shown("accepted_tokens_total", "prefixcache_accepted_tokens", "Guesses that were right"),
    _Shown("steps_total", "prefixcache_engine_steps", "Steps of the engine"),
)
_GAUGES = (
    _Shown("running", "prefixcache_requests_running", "Requests being computed"),
    _Shown("waiting", "prefixcache_requests_waiting", "Requests waiting for room"),
    _Shown("longest_free_run", "prefixcache_pool_longest_free_run", "Consecutive free KV blocks"),
    _Shown("waiting_tokens", "prefixcache_waiting_tokens", "Tokens of the requests that wait"),
)


class Metrics:
    """The counters and histograms that the gateway fills itself."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._http_requests = Counter(
            "prefixcache_http_requests",
            "Requests answered, by route and status (499: the client left first)",
            ("route", "status"),
            registry=self._registry,
        )
        self._answers_of = cache(self._http_requests.labels)
        self.client_closed = Counter(
            "prefixcache_client_closed",
            "Requests whose client left, or did not read, before the answer was complete",
            registry=self._registry,
        )
        self.block_tokens = Gauge(
            "prefixcache_block_tokens", "Tokens of a KV block", registry=self._registry
        )
        self.worker_restarts = Counter(
            "prefixcache_worker_restarts",
            "Times the worker died and was started again",
            registry=self._registry,
        )
        self._tenant_labels = TenantLabels()
        self._tenant_requests = Counter(
            "prefixcache_tenant_requests",
            "Requests that tenants were charged for or refused, by how they ended",
            ("tenant", "outcome"),
            registry=self._registry,
        )
        self._tenant_tokens = Counter(
            "prefixcache_tenant_tokens",
            "Prompt tokens computed or found cached, written ones of the computed, and output",
            ("tenant", "source"),
            registry=self._registry,
        )
        self._requests_of = cache(self._tenant_requests.labels)
        self._tokens_of = cache(self._tenant_tokens.labels)
        self._recent_first_tokens: deque[float] = deque(maxlen=_MOST_RECENT)
        self._first_token_seconds = LoopHistogram(
            "prefixcache_time_to_first_token_seconds",
            "From a request's tokenized prompt to its first output token",
            buckets=_FIRST_TOKEN_BUCKETS,
        )
        self.between_tokens_seconds = LoopHistogram(
            "prefixcache_inter_token_seconds",
            "Between one output of a request and its next",
            buckets=_BETWEEN_TOKENS_BUCKETS,
        )
        for histogram in (self._first_token_seconds, self.between_tokens_seconds):
            self._registry.register(histogram)

    def watch(self, stats: Callable[[], EngineStats], is_ready: Callable[[], bool]) -> None:
        """Have every scrape show what `stats` and `is_ready` return then."""
        self._registry.register(_EngineCollector(stats, is_ready))

    def label_tenants(self, names: Iterable[str], most: int) -> None:
        """Count these tenants by name, at most so many in all; any other is "other"."""
        self._tenant_labels.extend(names, most)

    def count_answer(self, route: str, status: int) -> None:
        """Count a request that was answered, as its route has it."""
        self._answers_of(route, str(status)).inc()

    def count_for_tenant(self, tenant: str, outcome: Outcome, usage: Usage) -> None:
        """Count a request that is over."""
        label = self._tenant_labels.of(tenant)
        self._requests_of(label, outcome.value).inc()
        for source, n_tokens in (
            ("computed", usage.prompt_tokens - usage.cached_tokens),
            ("cached", usage.cached_tokens),
            ("written", usage.written_tokens),
            ("output", usage.output_tokens),
        ):
            self._tokens_of(label, source).inc(n_tokens)

    def observe_first_token(self, seconds: float) -> None:
        """Count how long a request waited for its first token."""
        self._first_token_seconds.observe(seconds)
        self._recent_first_tokens.append(seconds)

    def take_first_tokens(self) -> list[float]:
        """Return the times to first token since the last call, of many the latest ones."""
        recent = list(self._recent_first_tokens)
        self._recent_first_tokens.clear()
        return recent

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class Pace:
    """How fast one call's output comes."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        """Begin now, with the call."""
        self._metrics = metrics
        self._clock = clock
        self._began = clock()
        self._last: dict[int, float] = {}  # when each request gave output

    def observe(self, index: int) -> float:
        """Note that request `index` gives output now, and return when that is."""
        now, last = self._clock(), self._last.get(index)
        self._last[index] = now
        if last is None:
            self._metrics.observe_first_token(now - self._began)
        else:
            self._metrics.between_tokens_seconds.observe(now - last)
        return now


class TenantLabels:
    """Which tenants have a label of their own: the first that were named, and they keep it."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def extend(self, names: Iterable[str], most: int) -> None:
        """Give labels to more tenants, in that order, as long as there are fewer than `most`."""
        for name in names:
            if len(self._names) < most:
                self._names.add(name)

    def of(self, tenant: str) -> str:
        """Return what `tenant` is counted under."""
        return tenant if tenant in self._names else OTHER_TENANTS


class _EngineCollector(Collector):
    """Shows the engine's own counters, which live in the backend."""

    def __init__(self, stats: Callable[[], EngineStats], is_ready: Callable[[], bool]) -> None:
        self._stats = stats
        self._is_ready = is_ready

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        for shown in _COUNTERS:
            yield CounterMetricFamily(shown.name, shown.help, value=getattr(stats, shown.field))
        for shown in _GAUGES:
            yield GaugeMetricFamily(shown.name, shown.help, value=getattr(stats, shown.field))
        blocks = GaugeMetricFamily(
            "prefixcache_pool_blocks", "KV blocks by state; the sum is the pool", labels=["state"]
        )
        for state in ("free", "cached", "held"):
            blocks.add_metric([state], getattr(stats.pool, state))
        yield blocks
        misses = CounterMetricFamily(
            "prefixcache_misses",
            "Requests that did not find all of their prompt cached, by what stood in the way",
            labels=["reason"],
        )
        for reason, n_requests in sorted(stats.misses.items()):
            misses.add_metric([reason], n_requests)
        yield misses
        yield from tier_metrics(stats.tiers)
        yield GaugeMetricFamily(
            "prefixcache_ready", "1 while requests are taken", value=float(self._is_ready())
        )
