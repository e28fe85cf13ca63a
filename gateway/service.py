"""What every dialect builds on: the served model, prompts to ids, and calls to the backend."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from gateway.admission import Admission
from gateway.backends.base import Backend, Control, Reloadable
from gateway.config import GatewayConfig, Settings
from gateway.encoding import EncodePool
from gateway.errors import (
    BadModelError,
    ChangeRefusedError,
    DrainingError,
    ModelRefusedError,
    NotReadyError,
    NotSupportedError,
    StartError,
)
from gateway.late import with_late_ones
from gateway.ledger import Ledger
from gateway.merge import NumberedEvent, closing, merged
from gateway.metrics import Metrics, Pace
from gateway.own_answers import Scope, ScopedHistory, own_answers_of
from gateway.prompt_tokens import shared_tokens
from gateway.prompts import Prompts
from gateway.prompts_db import PromptsDb
from gateway.published import PublishedPrompt, audience_of
from gateway.recording import Recording
from gateway.reloading import Reloader
from gateway.served import Call, Served
from gateway.tenancy import Tenancy
from gateway.tenants import Tenant
from gateway.tracing import NoTracing, Tracer
from gateway.usage_db import UsageDb
from gateway.watching import Watch, watched, watched_one
from prefixcache.control import Inspection, TenantQuota
from prefixcache.errors import PrefixCacheError
from prefixcache.text import PromptEncoder, TokenBytes
from prefixcache.types import EngineStats, ModelInfo

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Service:
    """One served model behind all routes. Lives on one event loop."""

    def __init__(
        self,
        backend: Backend,
        config: GatewayConfig,
        metrics: Metrics,
        *,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        tenancy: Tenancy | None = None,
        prompts_db: PromptsDb | None = None,
        read_settings: Callable[[], Settings] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Make it, not started.

        Args:
            tenancy: who may ask; None: everybody, with no limits and no accounts on disk.
            prompts_db: where published prompts are remembered; None: in memory alone.
            read_settings: reads the configuration again; None: nothing can have changed.
            tracer: takes note of requests; None: nothing does. Closed in the end.
        """
        self.config = config
        self.metrics = metrics
        self.new_id = new_id
        self.clock = clock  # seconds; for durations
        self.wall_clock = wall_clock  # seconds since the epoch
        self.own_answers = own_answers_of(config, clock)
        self.decoding = Lock()  # a thread's turn to decode a body
        self._backend = backend
        self._encoding = EncodePool(
            n_threads=config.encode_threads, max_waiting=config.max_encoding_requests
        )
        self.tenancy = tenancy or Tenancy(
            Settings(server=config), metrics, UsageDb.open(None), clock=clock, wall_clock=wall_clock
        )
        self.prompts = Prompts(
            self.control,
            prompts_db or PromptsDb.open(None),
            encode=self._shared_tokens,
            audience=lambda prompt: audience_of(prompt, self.tenancy.roster.tenants.values()),
            wall_clock=wall_clock,
            new_id=new_id,
            max_names=config.max_published_prompts,
        )
        self.reloader = Reloader(
            self.tenancy, read_settings, self._set_quotas, self.prompts.follow_limits
        )
        self.tracer: Tracer = tracer or NoTracing()
        self._recording: Recording | None = None
        self._served: Served | None = None
        self._is_draining = False
        self._n_active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        metrics.watch(backend.stats, lambda: self.is_ready)

    def history(self, scope: Scope) -> ScopedHistory | None:
        """Return what prompts of `scope` may begin with; None where that is turned off."""
        return None if self.own_answers is None else ScopedHistory(self.own_answers, scope)

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken now."""
        return self._served is not None and self._backend.is_ready and not self._is_draining

    def stats(self) -> EngineStats:
        """Return the engine's latest counters and gauges."""
        return self._backend.stats()

    async def inspected(self, *, max_nodes: int) -> Inspection | None:
        """Return the index as it is now; None while there is none to look at."""
        if not self.is_ready or not isinstance(self._backend, Control):
            return None
        try:
            return await self._backend.inspect(max_nodes=max_nodes)
        except (ChangeRefusedError, NotReadyError):
            return None

    async def start(self) -> None:
        """Start the backend and load the tokenizer of its model. Raises StartError."""
        await asyncio.to_thread(self.tenancy.start)
        info = await self._backend.start()
        self._recording = await asyncio.to_thread(_recording, self.config, info)
        try:
            encoder = await self.encode(partial(PromptEncoder.load, Path(info.folder)))
        except (OSError, PrefixCacheError) as error:
            raise StartError(f"the tokenizer in {info.folder} cannot be used: {error}") from error
        name = self.config.served_model_name or info.name
        if any(adapter.name == name for adapter in info.adapters):
            raise BadModelError(f"the model and an adapter are both called {name!r}")
        await self._set_first_quotas()
        self.metrics.block_tokens.set(info.block_size_tokens)
        token_bytes = TokenBytes(encoder.tokenizer)
        self._served = Served(name, info, encoder, token_bytes, since=int(self.wall_clock()))
        await self.prompts.start()

    def control(self) -> Control:
        """Return the backend's side that an operator steers. Raises NotSupportedError."""
        if not isinstance(self._backend, Control):
            raise NotSupportedError("this backend has no cache that could be steered")
        return self._backend

    def reloadable(self) -> Reloadable:
        """Return the backend's side that changes its model. Raises NotSupportedError."""
        if not isinstance(self._backend, Reloadable):
            raise NotSupportedError("this backend cannot change its model while it serves")
        return self._backend

    def served(self) -> Served:
        """Return the model, ready to be asked.

        Raises:
            DrainingError, NotReadyError: not now.
        """
        if self._is_draining:
            raise DrainingError("the server is stopping and takes no new requests")
        if self._served is None:
            raise NotReadyError("the model is being loaded; try in a moment")
        if not self._backend.is_ready:
            raise NotReadyError("the worker is being started again; try in a moment")
        return self._served

    def served_as(self, name: str, tenant: Tenant | None = None) -> Served:
        """Return the model or adapter called `name`, which `tenant` may ask; None: whoever asks.

        Raises:
            ModelNotFoundError, ModelRefusedError: there is none, or not for this tenant.
            DrainingError, NotReadyError: not now.
        """
        served = self.served().called(name)
        if tenant is not None and not tenant.may_use_model(name):
            raise ModelRefusedError(name)
        return served

    def use_info(self, info: ModelInfo) -> None:
        """Serve what a change of the backend's model has given: other adapters, other weights."""
        if self._served is not None:
            self._served = replace(self._served, info=info)
            self.prompts.settle()

    async def encode(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns, called in a thread: all that a large body makes slow.

        Raises:
            OverloadedError: too many wait for that already; and what `work` raises.
        """
        return await self._encoding.run(work)

    @asynccontextmanager
    async def run(self, call: Call, ledger: Ledger) -> AsyncIterator[AsyncIterator[NumberedEvent]]:
        """Have the backend answer `call`; whatever still runs when the block ends is cancelled.

        `ledger` is kept up to date with each event that is read.

        Raises:
            GenerationFailedError: from reading the events: a request of the call failed.
            NotReadyError: from reading the events: the backend takes none now.
        """
        arrived = self.wall_clock()
        sources = [self._backend.generate(request) for request in call.requests]
        watch = Watch(
            ledger,
            Pace(self.metrics, self.clock),
            call.recorder,
            call.grammar_param,
            self._encoding.settle,
        )
        try:
            if len(sources) == 1:
                async with closing(sources[0]) as source, aclosing(watched_one(source, watch)) as e:
                    yield e
                return
            async with (
                merged(sources) as events,
                aclosing(with_late_ones(events)) as settled,
                aclosing(watched(settled, watch)) as noted,
            ):
                yield noted
        finally:
            self._record(call, ledger, arrived)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Count a request as running, for `drain`."""
        self._n_active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._n_active -= 1
            if self._n_active == 0:
                self._idle.set()

    async def drain(self) -> None:
        """Take no new requests, and return when those that run have ended."""
        self._is_draining = True
        _log.info("draining; requests running: %d", self._n_active)
        await self._idle.wait()

    async def close(self) -> None:
        """End what still runs and give everything back but the accounts, which that goes to."""
        self._is_draining = True
        await self.prompts.close()
        await self._backend.close()
        self._encoding.close()
        if self._recording is not None:
            await self._recording.close()
        await asyncio.to_thread(self.tracer.close)

    def admitted(self, call: Call, admission: Admission | None, ledger: Ledger) -> Call:
        """Return `call` as its tenant may ask it, with its tokens reserved.

        Raises:
            ModelRefusedError, TenantBusyError, OverLimitError, RateLimitedError: it may not.
        """
        if admission is None:
            return call
        model = call.requests[0].adapter or self.served().names[0]
        return replace(call, requests=admission.reserve(model, call.requests, ledger))

    def _record(self, call: Call, ledger: Ledger, arrived: float) -> None:
        """Have the recording, if there is one, take up what a call came to."""
        if self._recording is None or self._served is None:
            return
        self._recording.take(
            call.requests,
            ledger,
            arrived=arrived,
            model=self._served.names[0],
            decode=self._served.encoder.tokenizer.decode,
        )

    async def _set_first_quotas(self) -> None:
        """Have the backend keep what tenants are to have. Raises BadModelError if it cannot."""
        try:
            if quotas := self.tenancy.roster.quotas:
                await self._set_quotas(quotas)
        except ChangeRefusedError as error:
            raise BadModelError(str(error)) from error

    async def _shared_tokens(self, prompt: PublishedPrompt) -> bytes:
        """Return the tokens that conversations with `prompt` begin with. Raises GatewayError."""
        served, orders = self.served(), self.config.order_tool_keys
        return await self.encode(
            partial(shared_tokens, served.encoder, served.info, prompt, order_tool_keys=orders)
        )

    async def _set_quotas(self, quotas: Mapping[str, TenantQuota]) -> None:
        """Raises ChangeRefusedError, NotReadyError."""
        if not isinstance(self._backend, Control):
            raise ChangeRefusedError("this backend keeps no quotas; leave out [tenants.NAME.kv]")
        await self._backend.set_quotas(quotas)


def _recording(config: GatewayConfig, info: ModelInfo) -> Recording | None:
    if config.record_file is None:
        return None
    return Recording(
        Path(config.record_file),
        most_bytes=config.record_file_bytes,
        with_text=config.record_text,
        block_tokens=info.block_size_tokens,
    )
