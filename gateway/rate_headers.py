"""What is left of a tenant's rates, told in the headers that each dialect's clients read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from aiohttp import web

from gateway.admission import Left
from gateway.http import SERVICE, record_of
from gateway.limits import duration_text

_ANTHROPIC_ROUTES = "/v1/messages"


async def add_rate_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put them on an answer (for `Application.on_response_prepare`), where there are rates."""
    meter = record_of(request).meter
    if meter is not None and (rates := meter.rates()):
        if request.path.startswith(_ANTHROPIC_ROUTES):
            response.headers.update(anthropic_headers(rates, request.app[SERVICE].wall_clock()))
        else:
            response.headers.update(openai_headers(rates))


def openai_headers(rates: Mapping[str, Left]) -> Iterator[tuple[str, str]]:
    """Yield x-ratelimit-{limit,remaining,reset}-{requests,tokens}; resets as durations."""
    for what, left in rates.items():
        yield f"x-ratelimit-limit-{what}", str(left.limit)
        yield f"x-ratelimit-remaining-{what}", str(left.remaining)
        yield f"x-ratelimit-reset-{what}", duration_text(left.reset_seconds)


def anthropic_headers(rates: Mapping[str, Left], now: float) -> Iterator[tuple[str, str]]:
    """Yield anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}; resets as moments."""
    for what, left in rates.items():
        moment = datetime.fromtimestamp(now + left.reset_seconds, UTC)
        prefix = f"anthropic-ratelimit-{what}"
        yield f"{prefix}-limit", str(left.limit)
        yield f"{prefix}-remaining", str(left.remaining)
        yield f"{prefix}-reset", moment.isoformat(timespec="seconds").replace("+00:00", "Z")
