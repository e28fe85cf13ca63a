"""All tenants at work: who is let pass, what they use now, and their accounts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from functools import lru_cache
from types import MappingProxyType

from gateway.admission import Admission, Meter, Outcome
from gateway.config import Settings
from gateway.metrics import Metrics
from gateway.roster import Roster
from gateway.tenants import Tenant
from gateway.usage_db import AccountKey, UsageDb
from prefixcache.types import Usage

_DAY_SECONDS = 24 * 3600
_OUTCOME_COUNTERS = {
    Outcome.FAILED: "failed_requests",
    Outcome.CANCELLED: "cancelled_requests",
    Outcome.REFUSED: "refused_requests",
}


class MonthlyTokens:
    """The tokens that tenants have used in the present month of UTC."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._month = self._present_month()
        self._tokens: Counter[str] = Counter()

    @property
    def first_day(self) -> str:
        """The month's first day, as accounts have it."""
        return f"{self._present_month()}-01"

    def of(self, tenant: str) -> int:
        """Return what `tenant` has used since the month began."""
        self._turn_over()
        return self._tokens[tenant]

    def add(self, tenant: str, n_tokens: int) -> None:
        """Count what a request of `tenant` used."""
        self._turn_over()
        self._tokens[tenant] += n_tokens

    def _turn_over(self) -> None:
        if (month := self._present_month()) != self._month:
            self._month = month
            self._tokens.clear()

    def _present_month(self) -> str:
        return _iso_day(int(self._wall_clock() // _DAY_SECONDS))[:7]


class Tenancy:
    """The tenants of one server. Lives on one event loop."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        usage_db: UsageDb,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.roster = Roster.of(settings)
        self.usage_db = usage_db
        self._metrics = metrics
        self._clock = clock
        self._wall_clock = wall_clock
        self._month = MonthlyTokens(wall_clock)
        self._meters: dict[str, Meter] = {}
        metrics.label_tenants(self.roster.tenants, settings.server.max_tenant_labels)

    def today(self) -> date:
        """Return the day of UTC."""
        return day_of(self._wall_clock())

    def start(self) -> None:
        """Begin to keep accounts, and take up those of this month. Blocks for a moment."""
        self.usage_db.start()
        rows = self.usage_db.rows(first_day=self._month.first_day, last_day="9999-12-31")
        for row in rows:
            self._month.add(row.key.tenant, tokens_of(row.amounts))

    def use(self, settings: Settings) -> None:
        """Know the tenants of `settings` from now on; requests that run go on."""
        self.settings, self.roster = settings, Roster.of(settings)
        for name, meter in list(self._meters.items()):
            if (tenant := self.roster.tenants.get(name)) is not None:
                meter.use(tenant)
            elif not meter.n_open:
                del self._meters[name]
        self._metrics.label_tenants(self.roster.tenants, settings.server.max_tenant_labels)

    def meter(self, tenant: Tenant) -> Meter:
        """Return what `tenant` uses."""
        meter = self._meters.get(tenant.name)
        if meter is None:
            name = tenant.name
            meter = Meter(tenant, self._clock, lambda: self._month.of(name))
            self._meters[name] = meter
        return meter

    def refuse(self, tenant: Tenant) -> None:
        """Count a request that was not let pass."""
        self._account(tenant.name, "", Outcome.REFUSED, Usage(0, 0, 0))

    def leave(
        self,
        tenant: Tenant,
        admission: Admission,
        outcome: Outcome,
        usage: Usage,
        tier_tokens: Mapping[str, int],
    ) -> None:
        """End a request that was let pass, and put what it used on its tenant's account.

        `tier_tokens`: of the cached ones, those loaded from below the device, by tier.
        """
        admission.leave(usage)
        self._account(tenant.name, admission.model, outcome, usage, tier_tokens)

    def close(self) -> None:
        """Write the accounts. Blocks for as long as the file takes."""
        self.usage_db.close()

    def _account(
        self,
        tenant: str,
        model: str,
        outcome: Outcome,
        usage: Usage,
        tier_tokens: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._month.add(tenant, usage.prompt_tokens + usage.output_tokens)
        day = _iso_day(int(self._wall_clock() // _DAY_SECONDS))
        key = AccountKey(day, tenant, model)
        self.usage_db.add(key, amounts_of(outcome, usage, tier_tokens))
        self._metrics.count_for_tenant(tenant, outcome, usage)


def amounts_of(outcome: Outcome, usage: Usage, tier_tokens: Mapping[str, int]) -> Mapping[str, int]:
    """Return what a request adds to its account; zeros are left out."""
    amounts = {
        "requests": 1,
        "uncached_tokens": usage.prompt_tokens - usage.cached_tokens,
        "read_tokens": usage.cached_tokens,
        "written_tokens": usage.written_tokens,
        "output_tokens": usage.output_tokens,
        **{f"{tier}_tokens": n_tokens for tier, n_tokens in tier_tokens.items()},
    }
    if outcome in _OUTCOME_COUNTERS:
        amounts[_OUTCOME_COUNTERS[outcome]] = 1
    return {name: amount for name, amount in amounts.items() if amount}


def tokens_of(amounts: Mapping[str, int]) -> int:
    """Return the tokens that count for a quota, of what `amounts_of` has added up."""
    counters = ("uncached_tokens", "read_tokens", "output_tokens")
    return sum(amounts.get(counter, 0) for counter in counters)


def day_of(seconds: float) -> date:
    """Return the day of UTC in which it is so many seconds since the epoch."""
    return _day(int(seconds // _DAY_SECONDS))


@lru_cache(maxsize=2)
def _day(number: int) -> date:
    return datetime.fromtimestamp(number * _DAY_SECONDS, UTC).date()


@lru_cache(maxsize=2)
def _iso_day(number: int) -> str:
    return _day(number).isoformat()
