"""Who may use which route, and with which credential."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from gateway.errors import AccessRefusedError, OriginRefusedError, UnauthenticatedError
from gateway.hosts import names_loopback
from gateway.roster import Admin, Roster
from gateway.tenants import Tenant

_BEARER = "bearer "
_BASIC = "basic "
_KEY_HEADERS = ("x-api-key", "x-goog-api-key")
_KEY_IN_QUERY = "/v1beta/"  # only here, as Google's clients: other URLs end up in logs


class Access(Enum):
    """Whose credential a route needs."""

    NOBODYS = auto()
    TENANTS = auto()
    ADMINS = auto()
    ANYBODYS = auto()  # a tenant's or the admin's


_NAMED = {"/health": Access.NOBODYS, "/ready": Access.NOBODYS, "/metrics": Access.ADMINS}
_UNDER = {
    "/admin": Access.ADMINS,
    "/v1/prompts": Access.ANYBODYS,  # the handlers tell the operator from tenants
    "/openapi.json": Access.ANYBODYS,
    "/dashboard": Access.ADMINS,
}
_DASHBOARD = ("/dashboard", "/admin/dashboard")  # what a browser opens, and what its page reads


class DashboardLockedError(UnauthenticatedError):
    """As its base, for a browser, which asks its user for a name and a password then."""

    @property
    def headers(self) -> Mapping[str, str]:
        """See `GatewayError`."""
        return {hdrs.WWW_AUTHENTICATE: 'Basic realm="prefixcache", charset="UTF-8"'}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    tenant: Tenant | None = None  # None: nobody known, or the operator
    is_admin: bool = False


def access_of(request: web.Request) -> Access:
    """Return whose credential the request's route needs; a tenant's, where nothing else is said."""
    resource = request.match_info.route.resource
    if resource is None:
        return Access.ANYBODYS  # there is no such route, which only those with a key are told
    path = resource.canonical
    if path in _NAMED:
        return _NAMED[path]
    for folder, access in _UNDER.items():
        if path == folder or path.startswith(f"{folder}/"):
            return access
    return Access.TENANTS


def identify(request: web.Request, roster: Roster) -> Caller:
    """Return who sent `request`, if they may use its route.

    Raises:
        UnauthenticatedError: no credential, or one that nobody has.
        AccessRefusedError: a tenant's where the admin's is needed, or the other way round.
        OriginRefusedError: without keys, a page from elsewhere that asks for an admin route.
    """
    wanted = access_of(request)
    if roster.is_open:
        if wanted is Access.ADMINS:
            check_origin(request)
        return Caller(next(iter(roster.tenants.values())), is_admin=True)
    if wanted is Access.NOBODYS:
        return Caller()
    is_dashboard = _is_dashboard(request)
    key = (password_of(request) if is_dashboard else None) or credential_of(request)
    principal = None if key is None else roster.principal(key)
    if principal is None:
        raise (DashboardLockedError if is_dashboard else UnauthenticatedError)(key is None)
    is_admin = isinstance(principal, Admin)
    if wanted is not Access.ANYBODYS and is_admin != (wanted is Access.ADMINS):
        raise AccessRefusedError(not is_admin)
    return Caller(None if isinstance(principal, Admin) else principal, is_admin)


def credential_of(request: web.Request) -> str | None:
    """Return the key that a request brings, where official clients put it; None: none.

    The first of `Authorization: Bearer`, `x-api-key`, `x-goog-api-key` and, on Gemini's routes,
    the query's `key` is the one that counts.
    """
    authorization = request.headers.get(hdrs.AUTHORIZATION, "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    for header in _KEY_HEADERS:
        if (key := request.headers.get(header)) is not None:
            return key.strip()
    return request.query.get("key") if request.path.startswith(_KEY_IN_QUERY) else None


def password_of(request: web.Request) -> str | None:
    """Return the password of HTTP Basic (RFC 7617), whatever the user's name; None: there is none.

    A browser sends it by itself, also for other sites' pages. So it counts on the dashboard's
    routes alone, which change nothing.
    """
    authorization = request.headers.get(hdrs.AUTHORIZATION, "")
    if authorization[: len(_BASIC)].lower() != _BASIC:
        return None
    try:
        pair = base64.b64decode(authorization[len(_BASIC) :].strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return pair.partition(":")[2] or None


def _is_dashboard(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    if resource is None or request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
        return False
    path = resource.canonical
    return path in _DASHBOARD or path.startswith("/dashboard/")


def check_origin(request: web.Request) -> None:
    """Refuse what a browser sends for a page of another host. Raises OriginRefusedError."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and not names_loopback(urlsplit(origin).netloc):
        raise OriginRefusedError
