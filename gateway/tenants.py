"""Who asks: the tenant that a request's credential names, and what it may have."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from gateway.keys import first_bad_hash
from prefixcache.control import TenantQuota
from prefixcache.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_COUNTS = (
    "requests_per_minute",
    "tokens_per_minute",
    "tokens_per_month",
    "max_concurrent_requests",
    "max_queued",
    "max_output_tokens",
)
_FARTHEST_PRIORITY = 2**30  # so that a request's own can be added to it


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant may have. Of the numbers, 0 is no limit; of the lists, none is all."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0  # of prompts and output, cached ones too
    tokens_per_month: int = 0  # a hard quota, by months of UTC
    max_concurrent_requests: int = 0
    max_queued: int = 0  # answers that wait to be begun, each choice of each prompt is one
    max_output_tokens: int = 0  # of one answer; longer ones are cut
    priority: int = 0  # the lowest number is served first; requests can only add to it
    models: tuple[str, ...] | None = None  # and adapters, by the names that clients use
    prompts: tuple[str, ...] | None = None  # published ones, beside those published to it alone
    kv: TenantQuota = TenantQuota()


class TenantConfig(TenantLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table [tenants.NAME] of the configuration."""

    key_hashes: tuple[str, ...] = ()  # as `prefixcache tenants new-key` prints them

    def check(self, name: str) -> None:
        """Raise ConfigError where something cannot be right; its text never repeats a key."""
        table = f"tenants.{name}"
        if not _NAME.fullmatch(name):
            reason = "a name is 1 to 64 letters, digits, dots, dashes and underscores"
            raise ConfigError("tenants", name[:65], reason)
        for setting in _COUNTS:
            if getattr(self, setting) < 0:
                found = getattr(self, setting)
                raise ConfigError(f"{table}.{setting}", found, "must be at least 0 (no limit)")
        if abs(self.priority) > _FARTHEST_PRIORITY:
            reason = f"must be from -{_FARTHEST_PRIORITY} to {_FARTHEST_PRIORITY}"
            raise ConfigError(f"{table}.priority", self.priority, reason)
        check_hashes(f"{table}.key_hashes", self.key_hashes)


_NO_LIMITS = TenantLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A customer of this server, kept apart from all others."""

    name: str
    limits: TenantLimits = _NO_LIMITS
    is_alone: bool = False  # nobody else is served, so that its requests may have any priority

    def may_use_model(self, name: str) -> bool:
        """Whether it may ask the model or adapter called `name`."""
        return self.limits.models is None or name in self.limits.models

    def may_use_prompt(self, name: str) -> bool:
        """Whether it may use the published prompt called `name`."""
        return self.limits.prompts is None or name in self.limits.prompts


DEFAULT_TENANT = Tenant(name="default", is_alone=True)  # everybody, where no keys are configured


def check_hashes(setting: str, hashes: tuple[str, ...]) -> None:
    """Raise ConfigError where one is no hash of a key: it may be the key, so it is not shown."""
    bad = first_bad_hash(hashes)
    if bad is not None:
        reason = (
            "is not sha256: and 64 hexadecimal digits; `prefixcache tenants new-key` prints both"
            " a key and its hash. If a key stood there, make a new one"
        )
        raise ConfigError(f"{setting}[{bad}]", "...", reason)
