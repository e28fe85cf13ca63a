"""The web application: one service, its routes, and what is done around them."""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.api.admin import ADMIN_ROUTES
from gateway.api.anthropic import add_anthropic_routes
from gateway.api.gemini import add_gemini_routes
from gateway.api.models import MODEL_ROUTES
from gateway.api.openai import OPENAI_ROUTES, add_openai_headers
from gateway.api.openapi import DESCRIPTION, DESCRIPTION_ROUTE, ApiDescription
from gateway.api.operations import OPERATIONS_ROUTES
from gateway.api.prompts import PROMPT_ROUTES
from gateway.api.responses import KEPT_RESPONSES
from gateway.api.responses_kept import KeptResponse, KeptResponses
from gateway.api.steering import STEERING_ROUTES
from gateway.api.tokens import TOKEN_ROUTES
from gateway.http import SERVICE
from gateway.memory import TenantMemory
from gateway.middleware import add_request_id, observe
from gateway.rate_headers import add_rate_headers
from gateway.routes import add_routes
from gateway.service import Service

ROUTES = (
    *OPENAI_ROUTES,
    *MODEL_ROUTES,
    *TOKEN_ROUTES,
    *PROMPT_ROUTES,
    *ADMIN_ROUTES,
    *STEERING_ROUTES,
    *OPERATIONS_ROUTES,
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
    app[KEPT_RESPONSES] = KeptResponses(_memory(service))
    app[DESCRIPTION] = ApiDescription(ROUTES)
    add_routes(app.router, ROUTES)
    add_anthropic_routes(app)
    add_gemini_routes(app)
    return app


async def _close_accounts(app: web.Application) -> None:
    await asyncio.to_thread(app[SERVICE].tenancy.close)


def _memory(service: Service) -> TenantMemory[KeptResponse]:
    config = service.config
    return TenantMemory(
        max_tenant_bytes=config.max_kept_tenant_bytes,
        max_bytes=config.max_kept_bytes,
        ttl_seconds=config.kept_response_seconds,
        clock=service.clock,
    )
