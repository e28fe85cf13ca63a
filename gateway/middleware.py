"""What is done around every handler: ids, errors, counts and the log line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from gateway.envelopes import envelope_for
from gateway.errors import HostRefusedError, SlowClientError, is_expected, verdict
from gateway.hosts import names_loopback
from gateway.http import (
    SERVICE,
    Record,
    begin_record,
    error_response,
    record_of,
)
from gateway.service import Service
from prefixcache.types import Usage

CLIENT_CLOSED_STATUS = 499  # in logs and metrics alone: nobody was there to receive it

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEALTH_ROUTE = "/health"  # answered under any name
OPERATIONS_ROUTES = frozenset({HEALTH_ROUTE, "/ready", "/metrics"})  # probed too often for the log

_log = logging.getLogger("gateway.requests")


@web.middleware
async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Run `handler`; answer its errors, count the request, and log one line when it is over."""
    service = request.app[SERVICE]
    record = begin_record(request, service.new_id)
    started = service.clock()
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
        _account(service, request, record, status, service.clock() - started)


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request's id on its answer (for `Application.on_response_prepare`)."""
    for name in envelope_for(request).id_headers:
        response.headers[name] = record_of(request).request_id


async def _answered(request: web.Request, handler: Handler, record: Record) -> web.StreamResponse:
    try:
        _check_host(request)
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
        return error_response(request, error, record.request_id)


def _check_host(request: web.Request) -> None:
    """Refuse a request that was meant for another name; no keys are known that could vouch for it.

    Raises:
        HostRefusedError: the Host header is missing, or names no loopback host.
    """
    host = request.headers.get(hdrs.HOST)
    if request.path != HEALTH_ROUTE and not names_loopback(host or ""):
        raise HostRefusedError(host)


def _account(
    service: Service, request: web.Request, record: Record, status: int, seconds: float
) -> None:
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else "none"
    service.metrics.http_requests.labels(route, str(status)).inc()
    usage = record.ledger.usage() if record.ledger is not None else Usage(0, 0, 0)
    _log.log(
        logging.DEBUG if route in OPERATIONS_ROUTES else logging.INFO,
        "%s %s status=%d ms=%.1f prompt=%d cached=%d output=%d error=%s id=%s",
        request.method,
        route,
        status,
        1000 * seconds,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        record.error_code or "-",
        record.request_id,
    )
