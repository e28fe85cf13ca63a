"""The command `prefixcache usage`: the tenants' accounts, from a server or from its file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import click

from gateway.api.usage_report import (
    COUNTERS,
    TIER_COUNTERS,
    UsageAmounts,
    UsageReport,
    report_of,
)
from gateway.client.admin import ask_server, json_text, key_file_option
from gateway.tables import as_columns, count_text
from gateway.usage_db import read_usage, state_file

_DAY = click.DateTime(["%Y-%m-%d"])


@click.command("usage", epilog="Example: prefixcache usage http://127.0.0.1:8000 --tenant acme")
@click.argument("url", required=False)
@click.option(
    "--db",
    "file",
    type=click.Path(path_type=Path),
    help="Read a server's file instead.  [default: the one in the state directory]",
)
@click.option("--tenant", help="This tenant alone.")
@click.option("--from", "first", type=_DAY, help="First day of UTC.  [default: of this month]")
@click.option("--to", "last", type=_DAY, help="Last day of UTC.  [default: today]")
@key_file_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, as GET /admin/usage answers.")
def usage(
    url: str | None,
    *,
    file: Path | None,
    tenant: str | None,
    first: datetime | None,
    last: datetime | None,
    key_file: Path | None,
    as_json: bool,
) -> None:
    """Show what tenants have used, by day and model: of the server at URL, or of its file."""
    if url is not None and file is not None:
        raise click.UsageError("give a URL or --db, not both")
    today = datetime.now(UTC).date()
    first_day = today.replace(day=1) if first is None else first.date()
    last_day = max(today, first_day) if last is None else last.date()
    if url is not None:
        report = _asked(url, tenant, first_day, last_day, key_file)
    else:
        report = _read(file or state_file(os.environ), tenant, first_day, last_day)
    click.echo(json_text(report) if as_json else _table(report))


def _asked(
    url: str, tenant: str | None, first: date, last: date, key_file: Path | None
) -> UsageReport:
    query = {"from": first.isoformat(), "to": last.isoformat()}
    if tenant is not None:
        query["tenant"] = tenant
    return ask_server(url, "/admin/usage", UsageReport, key_file=key_file, **query)


def _read(file: Path, tenant: str | None, first: date, last: date) -> UsageReport:
    days = {"first_day": first.isoformat(), "last_day": last.isoformat()}
    return report_of(read_usage(file, tenant=tenant, **days), first, last)


def _table(report: UsageReport) -> str:
    shown = [name for name in COUNTERS if name not in TIER_COUNTERS or getattr(report.total, name)]
    headings = ("day", "tenant", "model", *(counter.replace("_", " ") for counter in shown))
    lines = [
        (line.day, line.tenant, line.model or "-", *_cells(line, shown)) for line in report.data
    ]
    return as_columns([headings, *lines, ("total", "", "", *_cells(report.total, shown))], n_left=3)


def _cells(amounts: UsageAmounts, shown: Sequence[str]) -> list[str]:
    return [count_text(getattr(amounts, counter)) for counter in shown]
