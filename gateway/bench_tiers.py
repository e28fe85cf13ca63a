"""The command `prefixcache bench tiers`."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from gateway.bench import save
from prefixcache.bench.tiers import as_data, as_table, load, measure, measure_load
from prefixcache.config import EngineConfig
from prefixcache.tiers.remote import RemoteTier


@click.command("tiers", epilog="Example: prefixcache bench tiers --tokens 1024 --json result.json")
@click.option("--model", help="As for serve.  [default: the small chat model]")
@click.option(
    "--tokens",
    "lengths",
    type=click.IntRange(min=64),
    multiple=True,
    default=(1024, 4096, 7936),
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

    Then a workload twice as large as the pool: with no tier, with host memory, with host memory and
    a disk. The figures are of the engine alone, with no HTTP around it. Each prompt length is
    computed once; progress is told on standard error.
    """
    config = EngineConfig(model=model, threads=threads)
    begin = time.monotonic()

    def report(line: str) -> None:
        click.echo(f"{time.monotonic() - begin:6.1f} s  {line}", err=True)

    loaded = load(config, env=os.environ, report=report)
    rows = []
    with TemporaryDirectory(dir=folder) as place:
        for row in measure(
            loaded,
            config,
            lengths,
            Path(place),
            report=report,
            remote=None if remote is None else partial(RemoteTier, remote),
        ):
            report(f"  {row.source}: {row.seconds:.3f} s, {row.cached_tokens} tokens cached")
            rows.append(row)
    with TemporaryDirectory(dir=folder) as place:
        loads = []
        for found in measure_load(loaded, config, load_tokens, Path(place), report=report):
            report(
                f"  {found.requests_per_second:.2f} requests a second, {found.hit_rate:.1%} hits"
            )
            loads.append(found)
    click.echo(as_table(rows, loads))
    if json_file is not None:
        result = {"model": loaded.info.name, "results": as_data(rows), "workload": as_data(loads)}
        save(json_file, result)
