"""What the commands under `prefixcache bench` share. Each is loaded when it is called."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from gateway.lazy import LazyGroup
from prefixcache.bench import machine


@click.group(
    "bench",
    cls=LazyGroup,
    later={
        "first-token": "gateway.bench_first_token:first_token",
        "policies": "gateway.bench_policies:policies",
        "index": "gateway.bench_index:index",
    },
    epilog="Example: prefixcache bench first-token --prefix 1024",
)
def bench() -> None:
    """Measure this machine with our own parts."""


def save(file: Path, result: Mapping[str, object]) -> None:
    """Write a result to `file`, after the command that gave it and the machine it ran on."""
    command = " ".join(["prefixcache", *sys.argv[1:]])
    data = msgspec.json.encode({"command": command, "machine": machine(), **result})
    try:
        file.write_bytes(msgspec.json.format(data, indent=2) + b"\n")
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from error
