"""What the commands under `prefixcache bench` share. Each is loaded when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from gateway.lazy import Later, LazyGroup
from prefixcache.bench import machine
from prefixcache.config import Pruning
from prefixcache.errors import ConfigError

_T = TypeVar("_T")


@click.group(
    "bench",
    cls=LazyGroup,
    later={
        "first-token": Later(
            "gateway.bench_first_token:first_token", "Time to first token, cold and cached."
        ),
        "policies": Later(
            "gateway.bench_policies:policies", "Eviction policies on request traces."
        ),
        "index": Later("gateway.bench_index:index", "What the index costs by itself."),
        "isolation": Later(
            "gateway.bench_isolation:isolation", "Whether one tenant can tell what another sent."
        ),
        "attention": Later("gateway.bench_attention:attention", "What attention costs by itself."),
        "serve": Later("gateway.bench_serve:serve", "Servers from outside, side by side."),
        "gateway": Later("gateway.bench_gateway:gateway", "What the gateway costs by itself."),
        "quality": Later(
            "gateway.bench_quality:quality", "What packed weights cost in quality, and gain."
        ),
        "tiers": Later(
            "gateway.bench_tiers:tiers", "What loading KV takes, beside computing it again."
        ),
    },
    epilog="Example: prefixcache bench first-token --prefix 1024",
)
def bench() -> None:
    """Measure our own parts on this machine, and servers."""


def each(
    read: Callable[[str], _T],
) -> Callable[[click.Context, click.Parameter, str | None], tuple[_T, ...]]:
    """Return an option's callback that reads the parts of a list with commas; none where unsaid."""

    def read_all(
        _context: click.Context, _parameter: click.Parameter, text: str | None
    ) -> tuple[_T, ...]:
        return () if text is None else tuple(read(part.strip()) for part in text.split(","))

    return read_all


def pruning(text: str) -> str:
    """Return `text` if it is a setting of --kv-prune; anything else is a usage error."""
    try:
        Pruning.read(text)
    except ConfigError as error:
        raise click.BadParameter(f"{text!r}: {error.reason}") from error
    return text


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Return a reader of one of `names`; anything else is a usage error."""

    def read(text: str) -> str:
        if text not in names:
            raise click.BadParameter(f"{text!r} is none of {', '.join(names)}")
        return text

    return read


def save(file: Path, result: Mapping[str, object]) -> None:
    """Write a result to `file`, after the command that gave it and the machine it ran on."""
    command = " ".join(["prefixcache", *sys.argv[1:]])
    data = msgspec.json.encode({"command": command, "machine": machine(), **result})
    try:
        file.write_bytes(msgspec.json.format(data, indent=2) + b"\n")
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from error
