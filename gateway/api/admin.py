"""The operator's routes: tenants and what they use, accounts, and reading the settings again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import date

import msgspec
from aiohttp import hdrs, web

from gateway.api.usage_report import UsageReport, report_of
from gateway.errors import InvalidRequestError
from gateway.http import SERVICE, reply
from gateway.routes import READ_ERRORS, Route, in_dialect
from gateway.tenants import TenantLimits
from gateway.usage_db import UsageDb

DIALECT = "admin"


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whose accounts, and of which days, both included."""

    tenant: str | None = None  # all of them
    from_: date | None = msgspec.field(name="from", default=None)  # the month's first
    to: date | None = None  # today


_USAGE_QUERY = frozenset(UsageQuery.__struct_encode_fields__)


class TenantNow(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant uses now."""

    concurrent_requests: int
    queued: int  # answers to be begun
    requests_remaining: int | None  # this minute; null: no limit
    tokens_remaining: int | None
    month_tokens: int


class TenantCard(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as its operator sees it. Never its keys, nor their hashes."""

    name: str
    n_keys: int
    limits: TenantLimits
    now: TenantNow


class TenantList(msgspec.Struct, frozen=True, kw_only=True):
    """All tenants that are configured."""

    object: str = "list"
    is_open: bool  # no keys are configured
    data: list[TenantCard]


class ReloadReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload brought."""

    tenants: tuple[str, ...]
    need_restart: tuple[str, ...]  # changed settings that are taken up at the next start


async def list_tenants(request: web.Request) -> web.Response:
    """Answer with the tenants, their limits and what they use now."""
    tenancy = request.app[SERVICE].tenancy
    roster = tenancy.roster
    cards = []
    for tenant in roster.tenants.values():
        meter = tenancy.meter(tenant)
        left = {what: rate.remaining for what, rate in meter.rates().items()}
        now = TenantNow(
            concurrent_requests=meter.n_open,
            queued=meter.n_waiting,
            requests_remaining=left.get("requests"),
            tokens_remaining=left.get("tokens"),
            month_tokens=meter.month_tokens(),
        )
        n_keys = roster.n_keys[tenant.name]
        cards.append(TenantCard(name=tenant.name, n_keys=n_keys, limits=tenant.limits, now=now))
    return reply(TenantList(is_open=roster.is_open, data=cards))


async def show_usage(request: web.Request) -> web.Response:
    """Answer with the accounts of some days: ?tenant=NAME&from=2026-12-01&to=2026-12-31."""
    service, query = request.app[SERVICE], request.query
    if unknown := set(query) - _USAGE_QUERY:
        name = min(unknown)
        raise InvalidRequestError(f"{name[:20]!r} is no parameter; tenant, from and to are", name)
    today = service.tenancy.today()
    first = _day(query, "from") or today.replace(day=1)
    last = _day(query, "to") or max(today, first)
    report = await asyncio.to_thread(
        _report, service.tenancy.usage_db, first, last, query.get("tenant")
    )
    return reply(report)


async def reload_settings(request: web.Request) -> web.Response:
    """Take up tenants, keys and limits as they are configured now, all or nothing."""
    found = await request.app[SERVICE].reloader.reload()
    reloaded = ReloadReply(tenants=found.tenants, need_restart=found.need_restart)
    return reply(reloaded)


def _report(usage_db: UsageDb, first: date, last: date, tenant: str | None) -> UsageReport:
    rows = usage_db.rows(first_day=first.isoformat(), last_day=last.isoformat(), tenant=tenant)
    return report_of(rows, first, last)


def _day(query: Mapping[str, str], name: str) -> date | None:
    """Return the day that a parameter names. Raises InvalidRequestError where it names none."""
    if (text := query.get(name)) is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(f"{name}: a day is written as 2026-12-31", name) from error


ADMIN_ROUTES = in_dialect(  # whatever is under /admin needs the admin's key (`gateway.access`)
    DIALECT,
    Route(
        hdrs.METH_GET,
        "/admin/tenants",
        list_tenants,
        "List the tenants, their limits and what they use now.",
        answer=TenantList,
    ),
    Route(
        hdrs.METH_GET,
        "/admin/usage",
        show_usage,
        "Show what tenants have used, by day.",
        query=UsageQuery,
        answer=UsageReport,
        errors=(*READ_ERRORS, 400),
    ),
    Route(
        hdrs.METH_POST,
        "/admin/reload",
        reload_settings,
        "Read tenants, keys and limits again, all or nothing.",
        answer=ReloadReply,
        errors=(*READ_ERRORS, 400),
    ),
)
