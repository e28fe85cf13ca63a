"""The web application: one service, its routes, and what is done around them."""

from __future__ import annotations

from aiohttp import web

from gateway.api.openai import OPENAI_ROUTES
from gateway.api.openapi import DESCRIPTION, DESCRIPTION_ROUTE, ApiDescription
from gateway.api.operations import OPERATIONS_ROUTES
from gateway.http import SERVICE
from gateway.middleware import add_request_id, observe
from gateway.routes import add_routes
from gateway.service import Service

ROUTES = (*OPENAI_ROUTES, *OPERATIONS_ROUTES, DESCRIPTION_ROUTE)


def make_app(service: Service) -> web.Application:
    """Return an application that answers with `service`. The caller starts and closes that."""
    app = web.Application(middlewares=[observe], client_max_size=service.config.max_body_bytes)
    app[SERVICE] = service
    app.on_response_prepare.append(add_request_id)
    app[DESCRIPTION] = ApiDescription(ROUTES)
    add_routes(app.router, ROUTES)
    return app
