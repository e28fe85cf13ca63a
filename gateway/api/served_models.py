"""Which of the models a request's tenant may be told of, for the lists of every dialect."""

from __future__ import annotations

from aiohttp import web

from gateway.http import SERVICE, record_of
from gateway.served import Served


def served_for(request: web.Request) -> list[Served]:
    """Return the model and its adapters, as far as the tenant may ask them.

    Raises:
        DrainingError, NotReadyError: not now.
    """
    served, tenant = request.app[SERVICE].served(), record_of(request).tenant
    return [served.called(name) for name in served.names if tenant.may_use_model(name)]


def named_model(request: web.Request) -> Served:
    """Return the model or adapter that the path names.

    Raises: as `Service.served_as`.
    """
    tenant = record_of(request).tenant
    return request.app[SERVICE].served_as(request.match_info["model"], tenant)
