"""Reading the configuration again while the server runs: whole, or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from gateway.config import Settings
from gateway.errors import ChangeRefusedError, GatewayError
from gateway.roster import Roster
from gateway.tenancy import Tenancy
from prefixcache.control import TenantQuota
from prefixcache.errors import ConfigError

_log = logging.getLogger(__name__)

SetQuotas = Callable[[Mapping[str, TenantQuota]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload brought."""

    tenants: tuple[str, ...]
    need_restart: tuple[str, ...]  # settings that have changed and are not taken up


class Reloader:
    """Takes up tenants, keys and limits from the configuration as it is now."""

    def __init__(
        self,
        tenancy: Tenancy,
        read: Callable[[], Settings] | None,
        set_quotas: SetQuotas,
        follow_limits: Callable[[], Awaitable[None]],
    ) -> None:
        """Make it.

        Args:
            read: gives the configuration; None: it cannot have changed.
            follow_limits: called when tenants have changed, to take back what some had.
        """
        self._tenancy = tenancy
        self._read = read
        self._set_quotas = set_quotas
        self._follow_limits = follow_limits
        self._turn = asyncio.Lock()

    async def reload(self) -> Reloaded:
        """Read the configuration and use its tenants from now on. Requests that run go on.

        Raises:
            ChangeRefusedError: it is wrong, or the engine cannot do it; all is as it was.
            NotReadyError: quotas changed and the engine takes none now; all is as it was.
        """
        async with self._turn:
            try:
                found = await self._changed()
            except (ConfigError, GatewayError) as error:
                _log.error("the configuration was not taken up, all is as it was: %s", error)
                raise
        _log.info(
            "tenants and limits were read again; tenants: %d; need a restart: %s",
            len(found.tenants),
            ", ".join(found.need_restart) or "none",
        )
        return found

    async def _changed(self) -> Reloaded:
        tenancy, running = self._tenancy, self._tenancy.settings
        try:
            read = await asyncio.to_thread(self._read) if self._read is not None else running
            fresh = Settings(  # checked again: keys may be gone that this host needs
                server=running.server,
                engine=running.engine,
                tenants=read.tenants,
                admin=read.admin,
            )
        except ConfigError as error:
            raise ChangeRefusedError(str(error)) from error
        quotas = Roster.of(fresh).quotas
        if quotas != tenancy.roster.quotas:
            await self._set_quotas(quotas)
        tenancy.use(fresh)
        await self._follow_limits()
        return Reloaded(tuple(tenancy.roster.tenants), tuple(changed_settings(running, read)))


def changed_settings(running: Settings, read: Settings) -> Iterator[str]:
    """Yield the settings of server and engine that differ, as table.name."""
    for table in ("server", "engine"):
        old, new = getattr(running, table), getattr(read, table)
        for name in msgspec.structs.fields(old):
            if getattr(old, name.name) != getattr(new, name.name):
                yield f"{table}.{name.name}"
