"""The engine in a worker process of its own, supervised and started again when it dies."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from gateway.backends.changes import PendingChanges, Standing
from gateway.backends.process import WorkerProcess, launch_worker
from gateway.backends.streams import EventStream
from gateway.backends.totals import after
from gateway.backends.watchdog import Watchdog
from gateway.config import GatewayConfig
from gateway.errors import ChangeRefusedError, NotReadyError, StartError
from prefixcache import wire
from prefixcache.config import EngineConfig
from prefixcache.control import (
    Inspection,
    Invalidation,
    Publication,
    PublicationState,
    TenantQuota,
)
from prefixcache.errors import WireError
from prefixcache.types import (
    EngineStats,
    Event,
    FailureKind,
    GenerationRequest,
    ModelInfo,
    PoolCounts,
    RequestId,
)

WORKER_COMMAND = (sys.executable, "-m", "prefixcache.engine.worker")
IDLE_STATS = EngineStats(
    pool=PoolCounts(free=0, cached=0, held=0),
    running=0,
    waiting=0,
    steps_total=0,
    prompt_tokens_total=0,
    cached_tokens_total=0,
    computed_tokens_total=0,
    output_tokens_total=0,
    evicted_blocks_total=0,
    preemptions_total=0,
)

_A = TypeVar("_A", bound=wire.Answer)
_DEFAULTS = GatewayConfig()
_log = logging.getLogger(__name__)
_GRACE_SECONDS = 3.0  # for a worker that was told to stop; its tiers take 2 of them
_LONGEST_DELAY_SECONDS = 30.0
_HEARTBEATS = 6  # are due in the time after which a worker without any is held to hang
_STEADY_SECONDS = 60.0  # a worker that lived so long is started again without a longer delay


class LocalBackend:
    """A `Backend`, and `Control`, whose engine runs in a child process.

    When the worker dies, or hangs and is killed for it, every request in flight ends with
    Failed(WORKER_DIED) and the worker is started again, each time in a row after twice the delay.
    Its cache starts empty; the counters in `stats` go on from where they were. It is told of
    quotas and publications before any request. It takes these before it has read the prompts
    again; those that begin with one wait for that.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = WORKER_COMMAND,
        silence_seconds: float = _DEFAULTS.worker_start_seconds,
        hang_seconds: float = _DEFAULTS.worker_silence_seconds,
        longest_step_seconds: float = _DEFAULTS.worker_step_seconds,
        max_stream_bytes: int = _DEFAULTS.max_stream_bytes,
        restart_delay_seconds: float = 0.25,
        report: Callable[[str], None] = _log.info,
        on_restart: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Make it, not started.

        Args:
            silence_seconds: how long a worker that loads may say nothing.
            hang_seconds: how long one that serves may.
            longest_step_seconds: how long one step of its may take.
        """
        self._config = config
        self._command = tuple(command)
        self._silence_seconds = silence_seconds
        self._hang_seconds = hang_seconds
        self._longest_step_seconds = longest_step_seconds
        self._max_stream_bytes = max_stream_bytes
        self._first_delay_seconds = self._delay_seconds = restart_delay_seconds
        self._report = report
        self._on_restart = on_restart
        self._clock = clock
        self._sleep = sleep
        self._worker: WorkerProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._is_ready = False
        self._streams: dict[RequestId, EventStream] = {}
        self._changes = PendingChanges()
        self._standing = Standing()
        self._past = self._latest = IDLE_STATS  # earlier workers' totals; this worker's numbers

    @property
    def is_ready(self) -> bool:
        """Whether the worker lives and has loaded its model."""
        return self._is_ready

    async def start(self) -> ModelInfo:
        """Start the worker and wait until it has loaded the model. Raises StartError."""
        self._worker = await self._launch()
        self._is_ready = True
        self._supervisor = asyncio.create_task(self._supervise(self._worker))
        return self._worker.model

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """Give the events of `request` as the worker's steps bring them; see `Backend`."""
        worker = self._worker
        if worker is None or not self._is_ready:
            raise NotReadyError("the worker is being started again; try in a moment")
        stream = EventStream(request.request_id, limit_bytes=self._max_stream_bytes)
        self._streams[request.request_id] = stream
        try:
            await worker.submit(request)
            while True:
                event = await stream.get()
                yield event
                if stream.is_drained:
                    return
        finally:
            if self._streams.pop(request.request_id, None) is not None:
                worker.cancel(request.request_id)

    async def load_adapter(self, name: str, folder: str) -> ModelInfo:
        """Load an adapter, or load it again; a worker that is started again has it too.

        Raises:
            ChangeRefusedError: the worker says why; all is as it was.
            NotReadyError: the worker is being started again, or died meanwhile.
        """
        adapters = {**self._config.adapters, name: folder}
        done = await self._ask(lambda n: wire.LoadAdapter(n, name, folder), wire.Changed)
        self._config = msgspec.structs.replace(self._config, adapters=adapters)
        return done.model

    async def unload_adapter(self, name: str) -> ModelInfo:
        """Take an adapter away; its requests go on to their end. Raises as `load_adapter`."""
        done = await self._ask(lambda number: wire.UnloadAdapter(number, name), wire.Changed)
        left = {each: folder for each, folder in self._config.adapters.items() if each != name}
        self._config = msgspec.structs.replace(self._config, adapters=left)
        return done.model

    async def reload(self, *, drains: bool = True) -> ModelInfo:
        """Read the model's weights again; return once they serve. Raises as `load_adapter`.

        `drains`: as in `Engine.reload`.
        """
        return (await self._ask(lambda n: wire.Reload(n, drains), wire.Changed)).model

    async def publish(self, publication: Publication) -> PublicationState:
        """Share a prefix and have it read; return once it is matchable. See `Control`."""
        with self._standing.publishing(publication):
            try:
                done = await self._ask(lambda n: wire.Publish(n, publication), wire.PromptRead)
            except asyncio.CancelledError:
                self._tell(lambda number: wire.Retire(number, publication.prompt_id))
                raise
        return done.state

    async def retire(self, prompt_id: str) -> None:
        """Share it no more. That holds for a worker that is away: it has nothing."""
        with suppress(NotReadyError):
            await self._ask(lambda number: wire.Retire(number, prompt_id), wire.Done)
        self._standing.publications.pop(prompt_id, None)

    async def invalidate(self, invalidation: Invalidation) -> None:
        """Make what was stored unmatchable. That holds for a worker that is away: it has nothing.

        Raises:
            ChangeRefusedError: no adapter of that name is loaded, or the name is missing.
        """
        with suppress(NotReadyError):
            await self._ask(lambda number: wire.Invalidate(number, invalidation), wire.Done)

    async def set_quotas(self, quotas: Mapping[str, TenantQuota]) -> None:
        """Have these quotas and no others; see `Control`, and `EngineControl.set_quotas`."""
        wanted = dict(quotas)
        try:
            await self._ask(lambda number: wire.SetQuotas(number, wanted), wire.Done)
        except asyncio.CancelledError:
            self._tell(lambda number: wire.SetQuotas(number, self._standing.quotas))
            raise
        self._standing.quotas = wanted

    async def inspect(self, *, max_nodes: int = 1000, tenant: str | None = None) -> Inspection:
        """Return the index as it is now, `tenant`'s part or all of it. See `Control`."""
        answer = await self._ask(lambda n: wire.Inspect(n, max_nodes, tenant), wire.Inspected)
        return answer.inspection

    async def _ask(self, make: Callable[[int], wire.Change], kind: type[_A]) -> _A:
        """Ask the worker for a change and return its answer, which is of that kind."""
        worker = self._worker
        if worker is None or not self._is_ready:
            raise NotReadyError("the worker is being started again; try in a moment")
        number, answer = self._changes.open()
        try:
            worker.change(make(number))
        except WireError as error:  # too long for a frame
            answer.cancel()
            raise ChangeRefusedError(str(error)) from error
        found = await answer
        if not isinstance(found, kind):
            raise ChangeRefusedError(f"the worker's answer was {type(found).__name__}")
        return found

    def _tell(self, make: Callable[[int], wire.Change]) -> None:
        """Ask the worker, if it is there, for a change that nobody waits for."""
        if self._worker is not None:
            self._worker.change(make(self._changes.open_unawaited()))

    def stats(self) -> EngineStats:
        """Return the worker's latest numbers, with the totals of its predecessors added."""
        return after(self._past, self._latest)

    async def close(self) -> None:
        """Fail what is in flight, stop the worker and reap it; kill it when it lingers."""
        self._is_ready = False
        self._fail_streams(FailureKind.CANCELLED, "the server is stopping")
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._worker is not None:
            await self._worker.end(grace_seconds=_GRACE_SECONDS)
            self._worker = None

    async def _launch(self) -> WorkerProcess:
        return await launch_worker(
            self._config,
            self._command,
            silence_seconds=self._silence_seconds,
            heartbeat_seconds=self._hang_seconds / _HEARTBEATS,
            report=self._report,
        )

    async def _supervise(self, worker: WorkerProcess) -> None:
        """Serve from `worker` and its successors until cancelled."""
        while True:
            born = self._clock()
            trouble = await self._serve(worker)
            await self._bury(worker, trouble)
            if self._clock() - born > _STEADY_SECONDS:
                self._delay_seconds = self._first_delay_seconds
            worker = self._worker = await self._launch_again()
            for make in self._standing.changes():
                self._tell(make)
            self._is_ready = True
            self._on_restart()
            _log.info("the worker serves again")

    async def _launch_again(self) -> WorkerProcess:
        """Start a worker, however often that takes, waiting longer before each attempt."""
        while True:
            await self._sleep(self._delay_seconds)
            self._delay_seconds = min(2 * self._delay_seconds, _LONGEST_DELAY_SECONDS)
            try:
                return await self._launch()
            except StartError as error:
                _log.error("the worker cannot be started again: %s", error)

    async def _serve(self, worker: WorkerProcess) -> str:
        """Pass on the worker's events until it is gone; return what is known of the reason."""
        watchdog = Watchdog(
            silence_seconds=self._hang_seconds, step_seconds=self._longest_step_seconds
        )
        watching = asyncio.create_task(self._kill_when_it_hangs(worker, watchdog))
        try:
            trouble = await self._listen(worker, watchdog)
            return watching.result() if watching.done() else trouble
        finally:
            watching.cancel()

    async def _kill_when_it_hangs(self, worker: WorkerProcess, watchdog: Watchdog) -> str:
        reason = await watchdog.watch()
        self._is_ready = False
        _log.error("the worker hangs: %s; it is killed", reason)
        worker.kill()
        return reason

    async def _listen(self, worker: WorkerProcess, watchdog: Watchdog) -> str:
        try:
            async for message in worker.messages():
                watchdog.heard(message)
                if isinstance(message, wire.Step):
                    self._latest = message.stats
                    for event in message.events:
                        self._pass_on(worker, event)
                elif isinstance(message, wire.Answer):
                    self._changes.answer(message)
        except WireError as error:
            return str(error)
        except Exception:  # a task's edge: a fault here must not leave requests waiting for ever
            _log.exception("the worker's report could not be handled")
            return "its report could not be handled"
        return "the connection ended"

    def _pass_on(self, worker: WorkerProcess, event: Event) -> None:
        """Queue `event` for its reader; forget requests that ended, cancel unread ones."""
        stream = self._streams.get(event.request_id)
        if stream is None:
            return
        if not stream.put(event):
            worker.cancel(event.request_id)
        if stream.is_ended:
            del self._streams[event.request_id]

    async def _bury(self, worker: WorkerProcess, trouble: str) -> None:
        """Fail what the worker owed, keep its totals and reap it."""
        self._is_ready = False
        n_failed = len(self._streams)
        self._fail_streams(
            FailureKind.WORKER_DIED, "the worker died while it served this request; send it again"
        )
        self._past, self._latest = self.stats(), IDLE_STATS
        await worker.end(grace_seconds=_GRACE_SECONDS)
        self._worker = None
        _log.error(
            "the worker is gone (%s, exit code %s); requests that failed: %d",
            trouble,
            worker.exit_code,
            n_failed,
        )

    def _fail_streams(self, kind: FailureKind, message: str) -> None:
        for stream in self._streams.values():
            stream.fail(kind, message)
        self._streams.clear()
        self._changes.fail()
