"""The web application: one service, its routes, and what is done around them."""

from __future__ import annotations

from aiohttp import web

from gateway.api.openai import OPENAI_ROUTES, add_openai_headers
from gateway.api.openapi import DESCRIPTION, DESCRIPTION_ROUTE, ApiDescription
from gateway.api.operations import OPERATIONS_ROUTES
from gateway.api.responses import KEPT_RESPONSES
from gateway.api.responses_kept import KeptResponse, KeptResponses
from gateway.api.tokens import TOKEN_ROUTES
from gateway.http import SERVICE
from gateway.memory import TenantMemory
from gateway.middleware import add_request_id, observe
from gateway.routes import add_routes
from gateway.service import Service

ROUTES = (*OPENAI_ROUTES, *TOKEN_ROUTES, *OPERATIONS_ROUTES, DESCRIPTION_ROUTE)


def make_app(service: Service) -> web.Application:
    """Return an application that answers with `service`. The caller starts and closes that."""
    app = web.Application(middlewares=[observe], client_max_size=service.config.max_body_bytes)
    app[SERVICE] = service
    app.on_response_prepare.append(add_request_id)
    app.on_response_prepare.append(add_openai_headers)
    app[KEPT_RESPONSES] = KeptResponses(_memory(service))
    app[DESCRIPTION] = ApiDescription(ROUTES)
    add_routes(app.router, ROUTES)
    return app


def _memory(service: Service) -> TenantMemory[KeptResponse]:
    config = service.config
    return TenantMemory(
        max_tenant_bytes=config.max_kept_tenant_bytes,
        max_bytes=config.max_kept_bytes,
        ttl_seconds=config.kept_response_seconds,
        clock=service.clock,
    )
