"""Accounts as they are shown, by the admin's route and on the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date

import msgspec

from gateway.usage_db import UsageRow

TIER_COUNTERS = ("host_tokens", "disk_tokens", "remote_tokens")  # of the read ones
COUNTERS = (
    "requests",
    "failed_requests",
    "cancelled_requests",
    "refused_requests",
    "uncached_tokens",
    "read_tokens",
    "written_tokens",
    "output_tokens",
    *TIER_COUNTERS,
)


class UsageAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests by how they ended, and tokens.

    A prompt is uncached plus read tokens; written ones are those of the uncached that were left
    in the cache. Of the read ones, some were loaded from a tier below the device.
    """

    requests: int = 0  # all that follow and those that ended well
    failed_requests: int = 0
    cancelled_requests: int = 0
    refused_requests: int = 0
    uncached_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    remote_tokens: int = 0


class UsageLine(UsageAmounts, frozen=True, kw_only=True):
    """The account of a tenant, for one model and day."""

    day: str
    tenant: str
    model: str | None  # null: requests that came to no model


class UsageReport(
    msgspec.Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}
):
    """The accounts of some days, both ends included."""

    object: str = "list"
    first: str
    last: str
    data: list[UsageLine]
    total: UsageAmounts


def report_of(rows: Iterable[UsageRow], first: date, last: date) -> UsageReport:
    """Return `rows`, which are of the days from `first` to `last`, as a report."""
    lines, total = [], Counter[str]()
    for row in rows:
        amounts = _known(row.amounts)
        total.update(amounts)
        day, tenant, model = row.key
        lines.append(UsageLine(day=day, tenant=tenant, model=model or None, **amounts))
    return UsageReport(
        first=first.isoformat(), last=last.isoformat(), data=lines, total=UsageAmounts(**total)
    )


def _known(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return the counters that are shown; a newer version may have written others."""
    return {name: amounts.get(name, 0) for name in COUNTERS}
