"""The web application: one service, its routes, and what is done around them."""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.api.admin import add_admin_routes
from gateway.api.openai import add_openai_routes
from gateway.api.operations import add_operations_routes
from gateway.http import SERVICE
from gateway.middleware import add_request_id, observe
from gateway.rate_headers import add_rate_headers
from gateway.service import Service


def make_app(service: Service) -> web.Application:
    """Return an application that answers with `service`. The caller starts and closes that.

    The accounts of its tenants are closed by the application's clean-up, after the last handler.
    """
    app = web.Application(middlewares=[observe], client_max_size=service.config.max_body_bytes)
    app[SERVICE] = service
    app.on_cleanup.append(_close_accounts)
    app.on_response_prepare.extend((add_request_id, add_rate_headers))
    add_openai_routes(app.router)
    add_operations_routes(app.router)
    add_admin_routes(app.router)
    return app


async def _close_accounts(app: web.Application) -> None:
    await asyncio.to_thread(app[SERVICE].tenancy.close)
