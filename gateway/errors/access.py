"""Requests of those who may not ask this."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import hdrs

from gateway.errors.base import SHOWN_CHARACTERS, GatewayError

_OTHER_WAY_ROUND = ("a tenant's", "the admin's")


class HostRefusedError(GatewayError):
    """The Host header names no loopback host, and without keys only those are answered."""

    param = "Host"

    def __init__(self, found: str | None) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        found = "is missing" if self.found is None else f"is {self.found[:SHOWN_CHARACTERS]!r}"
        return (
            f"the Host header {found}; with no API keys configured, requests must name"
            " localhost, 127.0.0.1 or [::1]"
        )


class OriginRefusedError(GatewayError):
    """A page from elsewhere asks for an admin route, which without keys is open to this machine."""

    param = "Origin"

    def __str__(self) -> str:
        return "with no API keys configured, admin routes are not for pages of other hosts"


class UnauthenticatedError(GatewayError):
    """The request has no credential, or one that nobody has. Never says which keys there are."""

    def __init__(self, is_missing: bool) -> None:
        super().__init__(is_missing)
        self.is_missing = is_missing

    @property
    def headers(self) -> Mapping[str, str]:
        """See `GatewayError`."""
        return {hdrs.WWW_AUTHENTICATE: "Bearer"}

    def __str__(self) -> str:
        if self.is_missing:
            return "an API key is needed: send it as Authorization: Bearer KEY"
        return "the API key is not known here"


class AccessRefusedError(GatewayError):
    """The credential is good, and not for this route."""

    def __init__(self, needs_admin: bool) -> None:
        super().__init__(needs_admin)
        self.needs_admin = needs_admin

    def __str__(self) -> str:
        needed, given = ("the admin's", "a tenant's") if self.needs_admin else _OTHER_WAY_ROUND
        return f"this route needs {needed} key; {given} was sent"


class ModelRefusedError(GatewayError):
    """The tenant may not ask this model."""

    param = "model"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

    def __str__(self) -> str:
        return f"the model {self.model!r} is not among those that this API key may ask"
