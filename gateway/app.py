"""The web application: one service, its routes, and what is done around them."""

from __future__ import annotations

from aiohttp import web

from gateway.api.anthropic import add_anthropic_routes
from gateway.api.gemini import add_gemini_routes
from gateway.api.models import add_model_routes
from gateway.api.openai import add_openai_routes
from gateway.api.operations import add_operations_routes
from gateway.http import SERVICE
from gateway.middleware import add_request_id, observe
from gateway.service import Service


def make_app(service: Service) -> web.Application:
    """Return an application that answers with `service`. The caller starts and closes that."""
    app = web.Application(middlewares=[observe], client_max_size=service.config.max_body_bytes)
    app[SERVICE] = service
    app.on_response_prepare.append(add_request_id)
    add_openai_routes(app.router)
    add_anthropic_routes(app)
    add_gemini_routes(app)
    add_model_routes(app.router)
    add_operations_routes(app.router)
    return app
