"""What a replay against a server gave, beside what was foretold: as a table and as data."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from gateway.client.live import Answered, Outcome
from gateway.client.live_server import ServerCache
from gateway.client.load import quantile
from gateway.tables import as_columns, count_text
from prefixcache.traces import TraceRequest

PERCENTILES = (50, 90, 99)
_SHOWN_REASONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How many rows a trace has, and what became of its requests.

    In most formats a row is a request; of ShareGPT it is a conversation with several.
    """

    read: int
    unusable: int  # rows
    beyond_limit: int
    too_long: int
    empty: int
    sent: int
    not_sent: int  # for the replay was interrupted

    @property
    def skipped(self) -> int:
        """Rows that were left out, for whatever reason."""
        return self.unusable + self.beyond_limit + self.too_long + self.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """A replay against a server, when it is over."""

    about: Mapping[str, object]  # the trace, the server and how it was replayed, ready for JSON
    rows: Rows
    requests: Sequence[TraceRequest]  # those that were to be sent
    outcomes: Sequence[Outcome]
    predicted: Mapping[int, int]  # by request: cached tokens, of those that were answered
    cache: ServerCache
    seconds: float
    is_interrupted: bool

    @property
    def answered(self) -> list[tuple[int, Answered]]:
        """The answers after their requests' numbers, as they were sent."""
        found = [(each.number, each.answered) for each in self.outcomes if each.answered]
        return sorted(found, key=lambda pair: (pair[1].sent_at, pair[0]))

    @property
    def reasons(self) -> Counter[str]:
        """Why requests failed."""
        return Counter(each.reason for each in self.outcomes if each.reason is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Cached tokens as foretold and as the server has them, of requests of which it says so."""

    requests: int
    prompt_tokens: int
    predicted_tokens: int
    server_tokens: int
    equal: int  # requests with both the same
    more: int  # requests of which the server had more
    fewer: int


def cached_of(result: LiveResult) -> Cached:
    """Return the sums over all requests of which the server says what was cached."""
    said = [
        (answer.prompt_tokens, result.predicted[number], answer.cached_tokens)
        for number, answer in result.answered
        if answer.cached_tokens is not None
    ]
    return Cached(
        requests=len(said),
        prompt_tokens=sum(prompt for prompt, _, _ in said),
        predicted_tokens=sum(predicted for _, predicted, _ in said),
        server_tokens=sum(server for _, _, server in said),
        equal=sum(predicted == server for _, predicted, server in said),
        more=sum(server > predicted for _, predicted, server in said),
        fewer=sum(server < predicted for _, predicted, server in said),
    )


def live_data(result: LiveResult) -> dict[str, object]:
    """Return all that was found, every request included, ready for JSON."""
    return {
        **result.about,
        "server_cache": asdict(result.cache),
        "rows": {**asdict(result.rows), "skipped": result.rows.skipped},
        "answered": len(result.answered),
        "failed": sum(result.reasons.values()),
        "interrupted": result.is_interrupted,
        "reasons": dict(result.reasons.most_common()),
        "cached": asdict(cached_of(result)),
        "seconds": _times(result),
        "first_token_fit": _fit(result),
        "rates": _rates(result),
        "requests": [_request(result, number, answer) for number, answer in result.answered],
    }


def live_text(result: LiveResult) -> str:
    """Return what a terminal shows."""
    rows, cached = result.rows, cached_of(result)
    parts = {"unusable": rows.unusable, "beyond the limit": rows.beyond_limit}
    parts |= {"too long": rows.too_long, "empty": rows.empty, "not sent": rows.not_sent}
    left_out = "".join(f", {count:,} {name}" for name, count in parts.items() if count)
    n_failed = sum(result.reasons.values())
    lines = [
        f"{rows.read:,} rows read, {rows.sent:,} sent{left_out};"
        f" {len(result.answered):,} answered, {n_failed:,} failed"
        + (", interrupted" if result.is_interrupted else "")
    ]
    common = result.reasons.most_common(_SHOWN_REASONS)
    lines += [f"failed {count:,} times: {reason}" for reason, count in common]
    lines += ["", *_cached_lines(result, cached)]
    if result.answered:
        lines += ["", _time_table(result), "", _rate_line(result)]
    return "\n".join(lines)


def _cached_lines(result: LiveResult, cached: Cached) -> list[str]:
    cache = result.cache
    room = "no limit" if cache.capacity_blocks is None else f"{cache.capacity_blocks:,} blocks"
    basis = f"blocks of {cache.block_tokens} tokens, {room} ({cache.source})"
    if not cached.requests:
        foretold = sum(result.predicted.values())
        return [f"foretold: {foretold:,} cached tokens; the server tells none; {basis}"]
    table = [
        ("cached tokens", "foretold", "server", "of"),
        (
            "",
            count_text(cached.predicted_tokens),
            count_text(cached.server_tokens),
            count_text(cached.prompt_tokens),
        ),
        (
            "%",
            _percent(cached.predicted_tokens, cached.prompt_tokens),
            _percent(cached.server_tokens, cached.prompt_tokens),
            "",
        ),
    ]
    note = (
        f"requests: {cached.equal:,} as foretold, {cached.more:,} with more cached,"
        f" {cached.fewer:,} with less; {basis}"
    )
    return [as_columns(table), note]


def _time_table(result: LiveResult) -> str:
    names = {
        "first_token": "first token",
        "inter_token": "between tokens",
        "whole": "whole answer",
        "late": "sent late by",
    }
    table = [("seconds", *(f"p{percent}" for percent in PERCENTILES), "most")]
    for key, found in _times(result).items():
        if key in names and found is not None:
            assert isinstance(found, dict)
            table.append((names[key], *(f"{value:.4f}" for value in found.values())))
    return as_columns(table)


def _rate_line(result: LiveResult) -> str:
    rates = _rates(result)
    return (
        f"{result.seconds:.1f} s: {rates['requests_per_second']} requests/s,"
        f" {rates['prompt_tokens_per_second']} prompt tokens/s,"
        f" {rates['output_tokens_per_second']} output tokens/s"
    )


def _times(result: LiveResult) -> dict[str, object]:
    answers = [answer for _, answer in result.answered]
    between = [each.inter_token_seconds for each in answers if each.inter_token_seconds is not None]
    return {
        "first_token": _percentiles([each.first_token_seconds for each in answers]),
        "inter_token": _percentiles(between),
        "whole": _percentiles([each.ended_at - each.sent_at for each in answers]),
        "late": _percentiles([each.late_seconds for each in result.outcomes]),
        "all": round(result.seconds, 3),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Return the smallest values that so many percent do not exceed, and the largest."""
    if not values:
        return None
    ordered = sorted(values)
    found = {f"p{percent}": quantile(ordered, percent / 100) for percent in PERCENTILES}
    return {name: round(value, 5) for name, value in {**found, "most": ordered[-1]}.items()}


def _fit(result: LiveResult) -> dict[str, float] | None:
    """Return how the time to the first token goes with the tokens foretold to be computed.

    A straight line by least squares: None where all requests have as many to compute.
    """
    pairs = [
        (answer.prompt_tokens - result.predicted[number], answer.first_token_seconds)
        for number, answer in result.answered
    ]
    computed, seconds = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(set(computed)) < 2 or len(set(seconds)) < 2:
        return None
    line = statistics.linear_regression(computed, seconds)
    return {
        "seconds_without_any": round(line.intercept, 5),
        "seconds_per_1000_computed_tokens": round(1000 * line.slope, 5),
        "correlation": round(statistics.correlation(computed, seconds), 3),
    }


def _rates(result: LiveResult) -> dict[str, float]:
    seconds = max(result.seconds, 1e-9)
    answers = [answer for _, answer in result.answered]
    return {
        "requests_per_second": round(len(answers) / seconds, 3),
        "prompt_tokens_per_second": round(sum(each.prompt_tokens for each in answers) / seconds, 1),
        "output_tokens_per_second": round(
            sum(each.completion_tokens for each in answers) / seconds, 1
        ),
    }


def _request(result: LiveResult, number: int, answer: Answered) -> dict[str, object]:
    request = result.requests[number]
    return {
        "number": number,
        "conversation": request.conversation,
        "asked_input_tokens": request.input_tokens,
        "asked_output_tokens": request.output_tokens,
        "predicted_cached_tokens": result.predicted[number],
        **{name: _rounded(value) for name, value in asdict(answer).items()},
    }


def _rounded(value: object) -> object:
    return round(value, 5) if isinstance(value, float) else value


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "-"
