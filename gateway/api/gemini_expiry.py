"""When cached contents expire: what bodies ask for, and how times are written."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from aiohttp import web

from gateway.api.gemini_models import CacheBody, read_fields
from gateway.errors import InvalidRequestError
from gateway.service import Service
from gateway.tenants import Tenant

_MAX_SECONDS = 30 * 24 * 3600.0
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s", re.ASCII)
_EXPIRY_FIELDS = frozenset({"ttl", "expireTime", "expire_time", "expiration.ttl"})


def new_expiry(request: web.Request, service: Service, tenant: Tenant, data: bytes) -> float:
    """Return the time that a PATCH asks for.

    Raises:
        InvalidRequestError: it asks for no time, or for anything else.
    """
    body = read_fields(CacheBody, data, turn=service.decoding)
    mask = request.query.get("updateMask", request.query.get("update_mask", ""))
    asked = {field for field in mask.split(",") if field}
    if asked - _EXPIRY_FIELDS:
        raise InvalidRequestError("updateMask: only ttl and expireTime can change", "updateMask")
    for name in ("contents", "system_instruction", "tools", "tool_config", "display_name"):
        if not asked and getattr(body, name) is not None:
            raise InvalidRequestError("only ttl and expireTime can change", name)
    expires = expiry_of(body, service.wall_clock())
    if expires is None:
        raise InvalidRequestError("ttl: it or expireTime is needed", "ttl")
    return expires


def expiry_of(body: CacheBody, now: float) -> float | None:
    """Return when `body` wants to expire. Raises InvalidRequestError: not in the future."""
    if body.ttl is not None and body.expire_time is not None:
        raise InvalidRequestError("ttl: leave it out beside expireTime", "ttl")
    if body.ttl is not None:
        found = _DURATION.fullmatch(body.ttl)
        if found is None:
            raise InvalidRequestError("ttl: seconds are needed, such as 300s", "ttl")
        return now + _checked(float(found[1]), "ttl")
    if body.expire_time is None:
        return None
    try:
        expires = datetime.fromisoformat(body.expire_time)
    except ValueError as error:
        message = "expireTime: a time is needed, such as 2026-12-01T12:00:00Z"
        raise InvalidRequestError(message, "expireTime") from error
    aware = expires if expires.tzinfo is not None else expires.replace(tzinfo=UTC)
    return now + _checked(aware.timestamp() - now, "expireTime")


def _checked(seconds: float, param: str) -> float:
    if not 0 < seconds <= _MAX_SECONDS:
        raise InvalidRequestError(
            f"{param}: must be in the future, and at most {_MAX_SECONDS:g} seconds from now", param
        )
    return seconds


def shown_time(seconds: float) -> str:
    """Return a time as the dialect writes it."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
