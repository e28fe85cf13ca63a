"""Who asks: the tenant that a request's credential names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A customer of this server, kept apart from all others."""

    name: str


DEFAULT_TENANT = Tenant(name="default")  # everybody, where no keys are configured
