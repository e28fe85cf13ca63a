"""One server's life: listen, load, answer, drain, end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from gateway.app import make_app
from gateway.backends.base import Backend
from gateway.config import GatewayConfig, Settings
from gateway.errors import GatewayError, StartError
from gateway.hosts import is_loopback
from gateway.ids import RandomIds
from gateway.metrics import Metrics
from gateway.prompts_db import PromptsDb
from gateway.protocol import Connection
from gateway.service import Service
from gateway.tenancy import Tenancy
from gateway.tls import tls_context
from gateway.tracing import tracer_for
from gateway.usage_db import UsageDb
from prefixcache.errors import PrefixCacheError

_log = logging.getLogger(__name__)
_LAST_WORDS_SECONDS = 2.0  # for handlers to tell their clients that the server ends
_LINGER_SECONDS = 2.0  # for a refused body to be thrown away, so that its sender reads the answer
_BACKLOG = 1024


class StopSignals:
    """The first SIGTERM or SIGINT asks for a drain, the second for the end."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.last_signal: int | None = None
        self._tasks: set[asyncio.Future[object]] = set()

    def listen(self) -> None:
        """Take over both signals in the running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.notice, number)

    def on_hangup(self, act: Callable[[], Awaitable[object]]) -> None:
        """Have each SIGHUP from now on call `act`, which tells by itself what went wrong."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._begin, act)

    def _begin(self, act: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.ensure_future(act())
        self._tasks.add(task)  # nobody else holds it
        task.add_done_callback(self._tasks.discard)

    def follow(self, pipe: int) -> None:
        """Take the end of a pipe for a SIGTERM: whoever holds its other end is gone."""
        asyncio.get_running_loop().add_reader(pipe, self._read, pipe)

    def _read(self, pipe: int) -> None:
        if not os.read(pipe, 4096):
            asyncio.get_running_loop().remove_reader(pipe)
            self.notice(signal.SIGTERM)

    def notice(self, number: int) -> None:
        """Take note of a signal."""
        self.last_signal = number
        (self.second if self.first.is_set() else self.first).set()


async def serve(
    settings: Settings,
    make_backend: Callable[[Metrics], Backend],
    *,
    announce: Callable[[str], None],
    signals: StopSignals,
    usage_db: UsageDb | None = None,
    prompts_db: PromptsDb | None = None,
    read_again: Callable[[], Settings] | None = None,
) -> int:
    """Serve until told to stop; return the exit code.

    Args:
        announce: called once with the server's URL, when it answers with the model loaded; before
            that, all but /health and /metrics answer 503.
        usage_db: where the tenants' accounts are kept; None: in memory. Closed in the end.
        prompts_db: the same for published prompts.
        read_again: gives the settings as they are configured now, for a reload on SIGHUP; None:
            a SIGHUP is what it always was.

    Raises:
        StartError: the address cannot be bound, or the backend cannot start.
        ConfigError: the certificate, the recording or the tracing cannot be had.
    """
    config, metrics = settings.server, Metrics()
    tls = tls_context(config)
    tenancy = Tenancy(settings, metrics, usage_db or UsageDb.open(None))
    service = Service(
        make_backend(metrics),
        config,
        metrics,
        new_id=RandomIds(os.urandom),
        clock=time.perf_counter,
        wall_clock=time.time,
        tenancy=tenancy,
        prompts_db=prompts_db,
        read_settings=read_again,
        tracer=tracer_for(config.otlp_endpoint),
    )
    if read_again is not None:
        signals.on_hangup(partial(_reload, service))
    runner = await make_runner(service)
    try:
        listener = await open_listener(runner, config, tls)
        if await _is_started(service, signals):
            _set_aside_what_stays()
            _log_who_may_ask(settings)
            announce(url_of(listener, tls))
            await signals.first.wait()
        listener.close()
        is_hurried = await _is_drain_cut_short(service, config.drain_seconds, signals)
    finally:
        await service.close()
        await runner.cleanup()
    return 128 + (signals.last_signal or 0) if is_hurried else 0


async def make_runner(service: Service) -> web.AppRunner:
    """Return the application around `service`, ready for connections; a disconnect cancels."""
    runner = web.AppRunner(
        make_app(service), handler_cancellation=True, shutdown_timeout=_LAST_WORDS_SECONDS
    )
    await runner.setup()
    return runner


async def open_listener(
    runner: web.AppRunner, config: GatewayConfig, tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """Bind the configured address and hand its connections to `runner`'s application.

    Args:
        tls: what they are encrypted with; None: they are plain.

    Raises:
        StartError: the address is taken or not ours.
    """
    assert runner.server is not None  # `setup` has made it
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        bound = socket.create_server((config.host, config.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StartError(f"cannot listen on {config.host}:{config.port}: {error}") from error
    connection = partial(
        Connection,
        runner.server,
        loop=loop,
        access_log=None,  # type: ignore[arg-type]  # the middleware writes our own
        keepalive_timeout=config.idle_seconds,
        lingering_time=_LINGER_SECONDS,
        logger=_log,
    )
    return await loop.create_server(connection, sock=bound, backlog=_BACKLOG, ssl=tls)


def url_of(listener: asyncio.Server, tls: ssl.SSLContext | None = None) -> str:
    """Return the URL that `listener` answers at."""
    host, port = listener.sockets[0].getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _reload(service: Service) -> None:
    """Take up the settings that are configured now, or say in the log why not."""
    try:
        await service.reloader.reload()
    except (GatewayError, PrefixCacheError):
        pass  # the reloader has told
    except Exception:  # a task's edge
        _log.exception("the settings could not be read again")


def _set_aside_what_stays() -> None:
    """Spare the garbage collector what lives as long as the server: looking at it takes long."""
    gc.collect()
    gc.freeze()


def _log_who_may_ask(settings: Settings) -> None:
    if not settings.has_keys:
        _log.info(
            "no API keys are configured: open to one default tenant, on loopback addresses only"
        )
    elif not is_loopback(settings.server.host) and settings.server.tls_certificate is None:
        _log.info("keys and prompts travel as plain HTTP: set tls_certificate, or use a proxy")


async def _is_started(service: Service, signals: StopSignals) -> bool:
    """Start `service`; return False when a signal came first. Raises StartError."""
    starting = asyncio.create_task(service.start())
    stopping = asyncio.create_task(signals.first.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        return starting.done()
    finally:
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


async def _is_drain_cut_short(service: Service, drain_seconds: float, signals: StopSignals) -> bool:
    """Wait for running requests, but not too long; return whether a second signal ended it."""
    draining = asyncio.create_task(service.drain())
    hurrying = asyncio.create_task(signals.second.wait())
    try:
        await asyncio.wait(
            (draining, hurrying), timeout=drain_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        return hurrying.done()
    finally:
        draining.cancel()
        hurrying.cancel()
        await asyncio.gather(draining, hurrying, return_exceptions=True)
