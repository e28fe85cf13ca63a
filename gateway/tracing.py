"""Spans of requests, for whoever collects traces; nothing by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from gateway.request_log import RequestLine
from prefixcache.errors import ConfigError

_MODULE = "gateway.tracing_otel"


@dataclass(frozen=True, slots=True)
class Timing:
    """When a request began, and how long after that its first token came."""

    started: float  # seconds since the epoch
    first_token_seconds: float | None


class Tracer(Protocol):
    """Takes note of requests that are over; it never waits, and never fails one."""

    def record(
        self, line: RequestLine, timing: Timing, model: str, headers: Mapping[str, str]
    ) -> None:
        """Make a span of a request; `headers` may say which trace it belongs to."""

    def close(self) -> None:
        """Send what is not yet sent. Blocks for a bounded time."""


class NoTracing:
    """A `Tracer` that takes note of nothing."""

    def record(
        self, line: RequestLine, timing: Timing, model: str, headers: Mapping[str, str]
    ) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def tracer_for(otlp_endpoint: str | None) -> Tracer:
    """Return what sends spans there; None: nothing is traced.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if otlp_endpoint is None:
        return NoTracing()
    try:
        module = import_module(_MODULE)
    except ImportError as error:
        reason = f"needs OpenTelemetry ({error}): pip install 'prefixcache[otel]'"
        raise ConfigError("otlp_endpoint", otlp_endpoint, reason) from error
    tracer: Tracer = module.sending_to(otlp_endpoint)
    return tracer
