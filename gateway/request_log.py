"""The line that the log has for each request, and the log as JSON."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, TypeVar

import msgspec

from prefixcache.types import Usage

LogFormat = Literal["text", "json"]

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FIELD = "request"
_T = TypeVar("_T")


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a request that is over. Never its prompt, its answer or its key."""

    method: str
    route: str  # as it is routed: an id in a path is not in it
    status: int
    seconds: float
    usage: Usage
    tier_tokens: Mapping[str, int] = {}  # of the cached ones, by the tier they were loaded from
    error: str | None
    tenant: str | None  # none: nobody's
    request_id: str

    def __str__(self) -> str:
        return (
            f"{self.method} {self.route} status={self.status} ms={1000 * self.seconds:.1f}"
            f" prompt={self.usage.prompt_tokens} cached={self.usage.cached_tokens}"
            f" tiers={self._tiers} output={self.usage.output_tokens} error={self.error or '-'}"
            f" tenant={self.tenant or '-'} id={self.request_id}"
        )

    @property
    def _tiers(self) -> str:
        return ",".join(f"{name}:{n}" for name, n in self.tier_tokens.items()) or "-"


class JsonLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log as JSON: all fields are always there, null where they say nothing."""

    time: str  # UTC, RFC 3339
    level: str
    logger: str
    message: str
    exception: str | None
    method: str | None  # this and all below: of the request that is over
    route: str | None
    status: int | None
    duration_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    tier_tokens: Mapping[str, int] | None  # of the cached ones, by the tier they came from
    output_tokens: int | None
    error: str | None
    tenant: str | None
    request_id: str | None


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        found = getattr(record, _FIELD, None)
        line = found if isinstance(found, RequestLine) else None
        return msgspec.json.encode(
            JsonLine(
                time=datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
                level=record.levelname.lower(),
                logger=record.name,
                message="request" if line is not None else record.getMessage(),
                exception=self.formatException(record.exc_info) if record.exc_info else None,
                method=_of(line, lambda told: told.method),
                route=_of(line, lambda told: told.route),
                status=_of(line, lambda told: told.status),
                duration_ms=_of(line, lambda told: round(1000 * told.seconds, 1)),
                prompt_tokens=_of(line, lambda told: told.usage.prompt_tokens),
                cached_tokens=_of(line, lambda told: told.usage.cached_tokens),
                tier_tokens=_of(line, lambda told: told.tier_tokens),
                output_tokens=_of(line, lambda told: told.usage.output_tokens),
                error=_of(line, lambda told: told.error),
                tenant=_of(line, lambda told: told.tenant),
                request_id=_of(line, lambda told: told.request_id),
            )
        ).decode()


def log_request(log: logging.Logger, level: int, line: RequestLine) -> None:
    """Log a request that is over, for either format."""
    log.log(level, "%s", line, extra={_FIELD: line})


def formatter_of(log_format: LogFormat) -> logging.Formatter:
    """Return what writes the lines of a log."""
    return JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT)


def _of(line: RequestLine | None, field: Callable[[RequestLine], _T]) -> _T | None:
    return None if line is None else field(line)
