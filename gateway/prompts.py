"""The published prompts of a server: what is shared now, with whom, and until when.

Design: prefixcache/design/0029-published-prompts-of-the-gateway.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

from gateway.backends.base import Control
from gateway.errors import (
    ChangeRefusedError,
    GatewayError,
    NotReadyError,
    PromptConflictError,
    PromptNotFoundError,
    RetiredVersionError,
)
from gateway.prompts_db import PromptsDb
from gateway.published import PromptDraft, PublishedPrompt, Retirement, may_use
from gateway.publisher import GONE, Entry, Publisher
from gateway.tasks import Tasks
from gateway.tenants import Tenant
from prefixcache.errors import PrefixCacheError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_LOOK_SECONDS = 60.0  # a wall clock may be set, so lifetimes are looked at so often at least
_SETTLE_SECONDS = 600.0  # a template may show the day, so prompts are encoded again so often
_RETRY_SECONDS = 2.0  # while the worker is away


class Prompts:
    """Publishes, retires and remembers. One version of a name is current: the last.

    Lives on one event loop; `find` is for any thread.
    """

    def __init__(
        self,
        control: Callable[[], Control],
        db: PromptsDb,
        *,
        encode: Callable[[PublishedPrompt], Awaitable[bytes]],
        audience: Callable[[PublishedPrompt], tuple[str, ...] | None],
        wall_clock: Callable[[], float],
        new_id: Callable[[], str],
        max_names: int,
    ) -> None:
        """Make it, not started.

        Args:
            control: gives the backend's side, or raises what a client is told.
            encode: gives the tokens that every conversation with a prompt begins with.
            audience: gives the tenants that may use a prompt as things are; None: all.
        """
        self._control = control
        self._db = db
        self._publisher = Publisher(control, encode=encode, audience=audience, new_id=new_id)
        self._wall_clock = wall_clock
        self._max_names = max_names
        self._current: dict[str, Entry] = {}
        self._last: dict[str, Retirement] = {}  # the last version of each name, current or not
        self._reading: Entry | None = None  # not current yet
        self._turn = asyncio.Lock()  # one is read at a time; who retires needs no turn
        self._lifetimes, self._due = asyncio.Event(), asyncio.Event()
        self._tasks = Tasks()

    async def start(self) -> None:
        """Take up what was published before; it is read while the server answers already.

        Raises:
            PromptsFileError: the file cannot be read.
        """
        for found in await asyncio.to_thread(self._db.read):
            if isinstance(found, PublishedPrompt):
                self._current[found.name] = Entry(found)
            self._last[found.name] = _last(found)
        self._tasks.begin(self._end_lifetimes())
        self._tasks.begin(self._keep_settled())

    async def close(self) -> None:
        """End the tasks and close the file. What is published stays in it."""
        await self._tasks.close()
        await asyncio.to_thread(self._db.close)

    def find(self, name: str, version: int | None = None, *, tenant: Tenant) -> PublishedPrompt:
        """Return the current version for a request of `tenant`. Any thread may ask.

        Raises:
            RetiredVersionError: the tenant might have had it, once.
            PromptNotFoundError: there is none for this tenant, and it is not told more.
        """
        return self.entry(name, version, tenant=tenant).prompt

    def entry(self, name: str, version: int | None = None, *, tenant: Tenant | None) -> Entry:
        """Return the current version that `tenant` (None: the operator) asks for. As `find`."""
        entry = self._current.get(name)
        if entry is not None and self._is_seen(entry, tenant):
            if version in (None, entry.prompt.version):
                return entry
        else:
            entry = None
        last = self._last.get(name)
        if last is None or not (tenant is None or may_use(tenant, name, last.tenants)):
            raise PromptNotFoundError(name, version)
        if version is not None and not 1 <= version <= last.version:
            raise PromptNotFoundError(name, version)
        raise RetiredVersionError(
            name, version or last.version, None if entry is None else entry.prompt.version
        )

    def entries(self, *, tenant: Tenant | None) -> list[Entry]:
        """Return what `tenant` may use, or everything for the operator, in order of names."""
        found = [entry for entry in self._current.values() if self._is_seen(entry, tenant)]
        if tenant is None and self._reading is not None:
            found.append(self._reading)
        return sorted(found, key=lambda entry: (entry.prompt.name, entry.prompt.version))

    async def cached_tokens(self) -> Mapping[str, int]:
        """Return how much of each publication is cached now, by its id. Of a dead worker: none."""
        try:
            shown = await self._control().inspect(max_nodes=0)
        except NotReadyError:
            return {}
        return {state.prompt_id: state.cached_tokens for state in shown.publications}

    async def publish(self, draft: PromptDraft) -> Entry:
        """Publish a version; return once it is matchable and the one before it is not.

        It goes on to its end when whoever asked does not wait for it. Publishing what is current
        again, under the same version, changes nothing.

        Raises:
            PromptConflictError: the version is not above the last one.
            ChangeRefusedError, NotReadyError: the backend cannot have it; all is as it was.
            PromptsFileError: it cannot be remembered; all is as it was.
        """
        return await asyncio.shield(self._tasks.begin(self._publish(draft)))

    async def remove(self, name: str, version: int | None = None) -> list[PublishedPrompt]:
        """Retire a version, or what there is of a name; return what was retired. Never waits.

        Raises:
            PromptNotFoundError, RetiredVersionError: there is nothing of it.
            PromptsFileError: it is retired, and would be published again at the next start.
        """
        found = [
            entry
            for entry in (self._current.get(name), self._reading)
            if entry is not None and entry.prompt.name == name
            if version in (None, entry.prompt.version)
        ]
        if not found:
            self.entry(name, version, tenant=None)
        await self._end(found)
        return [entry.prompt for entry in found]

    async def follow_limits(self) -> None:
        """Take back at once what is shared with other tenants than it should be, and go on."""
        for entry in self._all():
            if not self._publisher.has_its_audience(entry):
                await self._publisher.take_back(entry)
        self.settle()

    def settle(self) -> None:
        """Have what is published compared with what should be: adapters or tenants changed."""
        for entry in self._current.values():
            entry.is_due = True
        self._due.set()

    async def expire(self) -> None:
        """Retire what has come to the end of its lifetime."""
        now = self._wall_clock()
        await self._end([each for each in self._current.values() if each.prompt.is_over(now)])

    def look_at_lifetimes(self) -> None:
        """Have the task that ends lifetimes look at the clock."""
        self._lifetimes.set()

    async def _publish(self, draft: PromptDraft) -> Entry:
        async with self._turn:
            current = self._current.get(draft.name)
            if current is not None and self._says(current, draft):
                await self._publisher.tell(current)
                return current
            version = self._version(draft)
            entry = Entry(PublishedPrompt.of(draft, version, self._wall_clock()), is_due=False)
            self._reading = entry
            try:
                await self._publisher.tell(entry)
                await asyncio.to_thread(self._db.put, entry.prompt)
            except BaseException:
                entry.is_retired = True
                await self._publisher.take_back(entry)
                raise
            finally:
                self._reading = None
            if entry.is_retired:
                await asyncio.to_thread(self._db.retire, entry.prompt)
                raise ChangeRefusedError(GONE)
            before = self._current.get(draft.name)
            self._current[draft.name], self._last[draft.name] = entry, _last(entry.prompt)
            if before is not None:
                before.is_retired = True
                await self._publisher.take_back(before)
        self.look_at_lifetimes()
        _log.info("published %s version %d", draft.name, version)
        return entry

    def _says(self, current: Entry, draft: PromptDraft) -> bool:
        return current.prompt.says(draft) and not current.prompt.is_over(self._wall_clock())

    def _version(self, draft: PromptDraft) -> int:
        last = self._last.get(draft.name)
        n_last = 0 if last is None else last.version
        if draft.version is not None and draft.version <= n_last:
            raise PromptConflictError(draft.name, draft.version, n_last)
        if draft.name not in self._current and len(self._current) >= self._max_names:
            raise ChangeRefusedError(
                f"{self._max_names} prompts are published; retire one, or raise"
                " max_published_prompts"
            )
        return n_last + 1 if draft.version is None else draft.version

    async def _end(self, entries: Iterable[Entry]) -> None:
        """Retire entries: first where they can be used, then where they are remembered."""
        ended = list(entries)
        for entry in ended:
            entry.is_retired = True
            if self._current.get(entry.prompt.name) is entry:
                del self._current[entry.prompt.name]
        for entry in ended:
            await self._publisher.take_back(entry)
            _log.info("retired %s version %d", entry.prompt.name, entry.prompt.version)
        for entry in ended:
            await asyncio.to_thread(self._db.retire, entry.prompt)

    async def _end_lifetimes(self) -> None:
        while True:
            self._lifetimes.clear()
            try:
                await self.expire()
            except GatewayError as error:
                _log.error("a prompt at the end of its lifetime: %s", error)
            now = self._wall_clock()
            ends = (each.prompt.expires for each in self._current.values())
            left = (end - now for end in ends if end is not None)
            await _set_or_late(self._lifetimes, max(min(left, default=_LOOK_SECONDS), 0.01))

    async def _keep_settled(self) -> None:
        while True:
            self._due.clear()
            is_behind = False
            for entry in [each for each in self._current.values() if each.is_due]:
                is_behind |= not await self._is_settled(entry)
            await _set_or_late(self._due, _RETRY_SECONDS if is_behind else _SETTLE_SECONDS)
            if not is_behind:
                self.settle()

    async def _is_settled(self, entry: Entry) -> bool:
        """Bring an entry up to date; return False if that is to be tried again soon."""
        async with self._turn:
            if entry.is_retired:
                return True
            entry.is_due = False
            try:
                await self._publisher.tell(entry)
            except NotReadyError:
                entry.is_due = True
                return False
            except (GatewayError, PrefixCacheError) as error:
                if entry.trouble != str(error):
                    name, version = entry.prompt.name, entry.prompt.version
                    _log.error("%s version %d cannot be had now: %s", name, version, error)
                entry.trouble = str(error)
            except Exception:  # a task's edge
                entry.trouble = "internal error"
                _log.exception("a published prompt could not be brought up to date")
        return True

    def _is_seen(self, entry: Entry, tenant: Tenant | None) -> bool:
        if entry.prompt.is_over(self._wall_clock()):
            return False
        return tenant is None or entry.prompt.is_for(tenant)

    def _all(self) -> list[Entry]:
        return [*self._current.values(), *([] if self._reading is None else [self._reading])]


def _last(found: PublishedPrompt | Retirement) -> Retirement:
    return Retirement(name=found.name, version=found.version, tenants=found.tenants)


async def _set_or_late(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
