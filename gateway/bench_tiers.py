"""The command `prefixcache bench tiers`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec

from gateway.bench import save
from prefixcache.bench.tiers import as_data, as_table, bytes_per_token, measure, measure_load
from prefixcache.config import EngineConfig
from prefixcache.tiers.remote import RemoteTier


@click.command("tiers", epilog="Example: prefixcache bench tiers --tokens 1024 --json result.json")
@click.option("--model", help="As for serve.  [default: the small chat model]")
@click.option(
    "--tokens",
    "lengths",
    type=click.IntRange(min=64),
    multiple=True,
    default=(1024, 2048, 4096, 7936),
    show_default=True,
    help="Of a prompt; may be given several times.",
)
@click.option(
    "--load-tokens",
    type=click.IntRange(min=64),
    default=1024,
    show_default=True,
    help="Of each prompt of the workload; the pool holds four of them.",
)
@click.option("--remote", metavar="URL", help="A server of Redis or Valkey to measure as well.")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where the disk to measure is.  [default: the system's temporary folder]",
)
@click.option("--threads", type=click.IntRange(min=1), help="Torch's CPU threads.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result here.")
def tiers(
    model: str | None,
    lengths: tuple[int, ...],
    load_tokens: int,
    remote: str | None,
    folder: Path | None,
    threads: int | None,
    json_file: Path | None,
) -> None:
    """Time to first token of prompts that are computed, or found on device, host, disk, remote.

    Then a workload twice as large as the pool, without and with host memory. The figures are of
    the engine alone, with no HTTP around it.
    """
    config = EngineConfig(model=model, threads=threads)

    def report(line: str) -> None:
        click.echo(line, err=True)

    a_token = bytes_per_token(config, env=os.environ, report=report)
    room_bytes = (max(lengths) + 512) * a_token
    roomy = msgspec.structs.replace(
        config, kv_memory_bytes=room_bytes, host_memory_bytes=2 * room_bytes
    )

    with TemporaryDirectory(dir=folder) as place:
        rows = []
        for row in measure(
            roomy,
            lengths,
            Path(place),
            env=os.environ,
            report=report,
            remote=None if remote is None else partial(RemoteTier, remote),
        ):
            report(f"{row.source}: {row.prompt_tokens} tokens in {row.seconds:.3f} s")
            rows.append(row)
    pool_bytes = 4 * (load_tokens + 32) * a_token
    small = msgspec.structs.replace(config, kv_memory_bytes=pool_bytes)
    loads = list(measure_load(small, load_tokens, env=os.environ, report=report))
    click.echo(as_table(rows, loads))
    if json_file is not None:
        save(json_file, {"results": as_data(rows), "workload": as_data(loads)})
