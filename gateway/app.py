"""The web application: one service, its routes, and what is done around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from gateway.api.admin import ADMIN_ROUTES
from gateway.api.anthropic import ANTHROPIC_ROUTES, FINGERPRINTS
from gateway.api.dashboard import DASHBOARD_ROUTES, TRENDS
from gateway.api.gemini import GEMINI_ROUTES
from gateway.api.gemini_caches import CACHE_ROUTES, CACHED_CONTENTS
from gateway.api.models import MODEL_ROUTES
from gateway.api.openai import OPENAI_ROUTES, add_openai_headers
from gateway.api.openapi import DESCRIPTION, DESCRIPTION_ROUTE, ApiDescription
from gateway.api.operations import OPERATIONS_ROUTES
from gateway.api.prompts import PROMPT_ROUTES
from gateway.api.responses import KEPT_RESPONSES
from gateway.api.responses_kept import KeptResponse, KeptResponses
from gateway.api.steering import STEERING_ROUTES
from gateway.api.tokens import TOKEN_ROUTES
from gateway.cached_contents import CachedContents
from gateway.fingerprints import Fingerprints
from gateway.http import SERVICE
from gateway.memory import TenantMemory
from gateway.middleware import add_request_id, observe
from gateway.rate_headers import add_rate_headers
from gateway.routes import add_routes
from gateway.service import Service
from gateway.trends import Trends

_KEPT_FINGERPRINTS = 1024  # of each tenant

ROUTES = (
    *OPENAI_ROUTES,
    *MODEL_ROUTES,
    *ANTHROPIC_ROUTES,
    *GEMINI_ROUTES,
    *CACHE_ROUTES,
    *TOKEN_ROUTES,
    *PROMPT_ROUTES,
    *ADMIN_ROUTES,
    *STEERING_ROUTES,
    *OPERATIONS_ROUTES,
    *DASHBOARD_ROUTES,
    DESCRIPTION_ROUTE,
)


def make_app(service: Service) -> web.Application:
    """Return an application that answers with `service`. The caller starts and closes that.

    The accounts of its tenants are closed by the application's clean-up, after the last handler.
    """
    app = web.Application(middlewares=[observe], client_max_size=service.config.max_body_bytes)
    app[SERVICE] = service
    app.on_cleanup.append(_close_accounts)
    app.on_response_prepare.extend((add_request_id, add_rate_headers, add_openai_headers))
    _add_state(app, service)
    app.cleanup_ctx.append(_sample_trends)
    add_routes(app.router, ROUTES)
    return app


def _add_state(app: web.Application, service: Service) -> None:
    """Make what handlers remember from one request to the next."""
    app[KEPT_RESPONSES] = KeptResponses(_memory(service))
    app[FINGERPRINTS] = Fingerprints(max_per_tenant=_KEPT_FINGERPRINTS)
    app[CACHED_CONTENTS] = CachedContents(
        max_per_tenant=service.config.max_cached_contents, now=service.wall_clock
    )
    app[TRENDS] = _trends(service)
    app[DESCRIPTION] = ApiDescription(ROUTES)


async def _close_accounts(app: web.Application) -> None:
    await asyncio.to_thread(app[SERVICE].tenancy.close)


async def _sample_trends(app: web.Application) -> AsyncIterator[None]:
    """Sample what the dashboard shows over time, for as long as the application runs."""
    seconds = app[SERVICE].config.trend_seconds
    sampling = asyncio.create_task(app[TRENDS].sample_every(seconds))
    try:
        yield
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)


def _trends(service: Service) -> Trends:
    return Trends(
        service.stats,
        service.metrics.take_first_tokens,
        service.wall_clock,
        most=service.config.trend_samples,
    )


def _memory(service: Service) -> TenantMemory[KeptResponse]:
    config = service.config
    return TenantMemory(
        max_tenant_bytes=config.max_kept_tenant_bytes,
        max_bytes=config.max_kept_bytes,
        ttl_seconds=config.kept_response_seconds,
        clock=service.clock,
    )
