"""What is done around every handler: ids, errors, counts and the log line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import hdrs, web

from gateway.access import identify
from gateway.admission import Outcome
from gateway.envelopes import envelope_for
from gateway.errors import LIMIT_ERRORS, HostRefusedError, SlowClientError
from gateway.hosts import names_loopback
from gateway.http import (
    SERVICE,
    Record,
    begin_record,
    error_response,
    record_of,
)
from gateway.request_log import RequestLine, log_request
from gateway.service import Service
from gateway.tracing import Timing
from gateway.verdicts import is_expected, verdict
from prefixcache.types import Usage

CLIENT_CLOSED_STATUS = 499  # in logs and metrics alone: nobody was there to receive it

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEALTH_ROUTE = "/health"  # answered under any name
OPERATIONS_ROUTES = frozenset({HEALTH_ROUTE, "/ready", "/metrics"})  # probed too often for the log

_FREE_METHODS = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})

_log = logging.getLogger("gateway.requests")


@web.middleware
async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Run `handler`; answer its errors, count the request, and log one line when it is over."""
    service = request.app[SERVICE]
    record = begin_record(request, service.new_id)
    record.started = service.clock()
    status = CLIENT_CLOSED_STATUS
    try:
        with service.active():
            response = await _answered(request, handler, record)
        status = response.status
        return response
    except (asyncio.CancelledError, ConnectionError):
        service.metrics.client_closed.inc()
        raise
    finally:
        _account(service, request, record, status, service.clock() - record.started)


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request's id on its answer (for `Application.on_response_prepare`)."""
    for name in envelope_for(request).id_headers:
        response.headers[name] = record_of(request).request_id


async def _answered(request: web.Request, handler: Handler, record: Record) -> web.StreamResponse:
    try:
        _check_host(request)
        _admit(request, record)
        return await handler(request)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except SlowClientError as error:
        record.error_code = verdict(error).code
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError(str(error)) from error
    except Exception as error:  # a task's edge: every error is answered
        if not is_expected(error):
            _log.exception("request %s failed", record.request_id)
        record.error_code = verdict(error).code
        record.is_refused = isinstance(error, LIMIT_ERRORS)
        return error_response(request, error, record.request_id)


def _check_host(request: web.Request) -> None:
    """Refuse a request that was meant for another name, where no key vouches for it.

    Raises:
        HostRefusedError: the Host header is missing, or names no loopback host.
    """
    host = request.headers.get(hdrs.HOST)
    if not request.app[SERVICE].tenancy.roster.is_open:
        return
    if request.path != HEALTH_ROUTE and not names_loopback(host or ""):
        raise HostRefusedError(host)


def _admit(request: web.Request, record: Record) -> None:
    """Find out who asks, and whether they may now, before anything is read.

    Raises:
        UnauthenticatedError, AccessRefusedError, OriginRefusedError: not with that credential.
        MonthlyQuotaError, RateLimitedError, TenantBusyError: not now.
    """
    tenancy = request.app[SERVICE].tenancy
    caller = identify(request, tenancy.roster)
    record.is_admin = caller.is_admin
    if caller.tenant is None:
        return
    record.tenant = caller.tenant
    record.meter = tenancy.meter(caller.tenant)
    if request.method in _FREE_METHODS or request.match_info.http_exception is not None:
        return
    record.admission = record.meter.admit()


def _leave(
    service: Service, record: Record, status: int, usage: Usage, tier_tokens: Mapping[str, int]
) -> None:
    """Put the request on its tenant's account."""
    if record.admission is not None:
        outcome = _outcome(record, status)
        service.tenancy.leave(record.tenant, record.admission, outcome, usage, tier_tokens)
    elif record.is_refused:
        service.tenancy.refuse(record.tenant)


def _outcome(record: Record, status: int) -> Outcome:
    if status == CLIENT_CLOSED_STATUS:
        return Outcome.CANCELLED
    if record.is_refused:
        return Outcome.REFUSED
    return Outcome.OK if record.error_code is None else Outcome.FAILED


def _account(
    service: Service, request: web.Request, record: Record, status: int, seconds: float
) -> None:
    ledger = record.ledger
    usage = ledger.usage() if ledger is not None else Usage(0, 0, 0)
    tier_tokens = ledger.tier_tokens() if ledger is not None else {}
    _leave(service, record, status, usage, tier_tokens)
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else "none"
    service.metrics.count_answer(route, status)
    line = RequestLine(
        method=request.method,
        route=route,
        status=status,
        seconds=seconds,
        usage=usage,
        tier_tokens=tier_tokens,
        error=record.error_code,
        tenant=None if record.meter is None else record.tenant.name,
        request_id=record.request_id,
    )
    is_probe = route in OPERATIONS_ROUTES
    log_request(_log, logging.DEBUG if is_probe else logging.INFO, line)
    if not is_probe:
        model = "" if record.admission is None else record.admission.model
        timing = _timing(service, record, seconds)
        service.tracer.record(line, timing, model, request.headers)


def _timing(service: Service, record: Record, seconds: float) -> Timing:
    first_token_at = None if record.ledger is None else record.ledger.first_token_at
    waited = None if first_token_at is None else first_token_at - record.started
    return Timing(service.wall_clock() - seconds, waited)
