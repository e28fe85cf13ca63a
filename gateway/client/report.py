"""A sitting as a table for people and as data for files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from gateway.client.scenarios import Sizes
from gateway.client.sitting import Row, Run
from gateway.client.streaming import Streamed
from gateway.client.targets import Target
from gateway.tables import as_columns

_CORNER = ("scenario", "figure")


def as_table(rows: Sequence[Row], servers: Sequence[str]) -> str:
    """Return the medians, a column for each server: its figure, then the cached tokens."""
    lines = [(*_CORNER, *(part for server in servers for part in (server, "cached")))]
    for row in rows:
        cells = [row.scenario, row.figure]
        for server in servers:
            cached = row.cached_tokens[server]
            cells += [_figure(row, server, servers[0]), "?" if cached is None else f"{cached:,}"]
        lines.append(tuple(cells))
    return as_columns(lines, n_left=len(_CORNER))


def as_data(
    targets: Sequence[Target], rows: Sequence[Row], runs: Sequence[Run], sizes: Sizes, seed: int
) -> dict[str, object]:
    """Return everything that was found, raw values included, ready for JSON."""
    return {
        "servers": [_server(target) for target in targets],
        "sizes": asdict(sizes),
        "seed": seed,
        "rows": [asdict(row) for row in rows],
        "runs": [_run(run) for run in runs],
    }


def _run(run: Run) -> dict[str, object]:
    return {
        "server": run.server,
        "scenario": run.scenario,
        "turn": run.turn,
        "is_warm_up": run.is_warm_up,
        "figures": dict(run.measured.figures),
        "work": asdict(run.work),
        "requests": [_request(answer) for answer in run.measured.answers],
    }


def _request(answer: Streamed) -> dict[str, object]:
    return {
        "first_token_seconds": answer.first_token_seconds,
        "seconds": answer.ended_at - answer.sent_at,
        "events": len(answer.arrivals),
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "completion_tokens": answer.completion_tokens,
    }


def _server(target: Target) -> dict[str, object]:
    identity = target.identity
    return {
        "name": target.address.name,
        "url": target.address.url,
        "kind": identity.kind.name,
        "version": identity.version,
        "model": identity.model,
        "command": identity.listener and identity.listener.command,
        "added_tokens": target.vocabulary.added_tokens,
        "request_fields": dict(identity.kind.extra),
    }


def _figure(row: Row, server: str, first: str) -> str:
    ratio = "" if server == first else f" (x{row.to_first[server]:.2f})"
    return f"{row.medians[server]:,.3f}{ratio}"
