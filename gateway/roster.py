"""Who is known to this server, by key: tenants, and its operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.config import Settings
from gateway.keys import KeyRing, parse_hash
from gateway.tenants import DEFAULT_TENANT, Tenant, TenantConfig, TenantLimits
from prefixcache.control import TenantQuota


class Admin:
    """Whoever has the admin's key."""


ADMIN: Final = Admin()
Principal = Tenant | Admin


@dataclass(frozen=True, slots=True)
class Roster:
    """The tenants and keys of one state of the configuration."""

    tenants: Mapping[str, Tenant]
    is_open: bool  # no keys: everybody is the default tenant, and the operator
    n_keys: Mapping[str, int]
    _keys: KeyRing[Principal]

    @classmethod
    def of(cls, settings: Settings) -> Roster:
        """Return who `settings`, which were checked, name."""
        if not settings.has_keys:
            return cls._open(settings.tenants.get(DEFAULT_TENANT.name, TenantConfig()))
        tenants = {
            name: Tenant(name=name, limits=_limits_of(config))
            for name, config in settings.tenants.items()
        }
        digests: dict[bytes, Principal] = {}
        for name, config in settings.tenants.items():
            digests |= {_digest(text): tenants[name] for text in config.key_hashes}
        digests |= {_digest(text): ADMIN for text in settings.admin.key_hashes}
        n_keys = {name: len(config.key_hashes) for name, config in settings.tenants.items()}
        return cls(tenants, False, n_keys, KeyRing(digests))

    @classmethod
    def _open(cls, config: TenantConfig) -> Roster:
        name = DEFAULT_TENANT.name
        everybody = Tenant(name=name, limits=_limits_of(config), is_alone=True)
        return cls({name: everybody}, True, {name: 0}, KeyRing({}))

    def principal(self, key: str) -> Principal | None:
        """Return whose key it is; None: nobody's."""
        return self._keys.owner_of(key)

    @property
    def quotas(self) -> Mapping[str, TenantQuota]:
        """What the engine is to keep for whom; who has the default is not named."""
        quotas = {name: tenant.limits.kv for name, tenant in self.tenants.items()}
        return {name: quota for name, quota in quotas.items() if quota != TenantQuota()}


def _limits_of(config: TenantConfig) -> TenantLimits:
    """Return what `config` allows, without its keys."""
    names = TenantLimits.__struct_fields__
    return TenantLimits(**{name: getattr(config, name) for name in names})


def _digest(text: str) -> bytes:
    digest = parse_hash(text)
    assert digest is not None  # the settings were checked
    return digest
