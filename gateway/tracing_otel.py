"""Spans of requests by OpenTelemetry; loaded only where tracing is on (the extra `otel`)."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.request_log import RequestLine
from gateway.tracing import Timing

_NANOSECONDS = 1e9
_SERVER_FAULTS = 500


class OtelTracer:
    """A `Tracer` that hands a span of each request to a processor."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: "prefixcache"}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("prefixcache")
        self._propagator = TraceContextTextMapPropagator()

    def record(
        self, line: RequestLine, timing: Timing, model: str, headers: Mapping[str, str]
    ) -> None:
        """Make a span; `traceparent` and `tracestate` (W3C Trace Context) name its parent."""
        carrier = {name.lower(): value for name, value in headers.items()}
        span = self._tracer.start_span(
            f"{line.method} {line.route}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=_attributes(line, timing, model),
            start_time=int(timing.started * _NANOSECONDS),
        )
        if timing.first_token_seconds is not None:
            at = timing.started + timing.first_token_seconds
            span.add_event("first token", timestamp=int(at * _NANOSECONDS))
        if line.status >= _SERVER_FAULTS:
            span.set_status(Status(StatusCode.ERROR))
        span.end(int((timing.started + line.seconds) * _NANOSECONDS))

    def close(self) -> None:
        """Send what waits, and stop."""
        self._provider.shutdown()


def sending_to(otlp_endpoint: str) -> OtelTracer:
    """Return a tracer that sends to a collector's URL, from a thread of its own."""
    return OtelTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=otlp_endpoint, timeout=5)))


def _attributes(line: RequestLine, timing: Timing, model: str) -> dict[str, AttributeValue]:
    """Return what a span says. Nothing of what was asked or answered."""
    found: dict[str, AttributeValue | None] = {
        "http.request.method": line.method,
        "http.route": line.route,
        "http.response.status_code": line.status,
        "error.type": line.error,
        "gen_ai.request.model": model or None,
        "gen_ai.usage.input_tokens": line.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": line.usage.output_tokens,
        "prefixcache.cached_tokens": line.usage.cached_tokens,
        **{f"prefixcache.tier_tokens.{tier}": n for tier, n in line.tier_tokens.items()},
        "prefixcache.time_to_first_token_seconds": timing.first_token_seconds,
        "prefixcache.tenant": line.tenant,
        "prefixcache.request_id": line.request_id,
    }
    return {name: value for name, value in found.items() if value is not None}
