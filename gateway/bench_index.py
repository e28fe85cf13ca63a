"""The command `prefixcache bench index`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from gateway.bench import each, one_of, save
from prefixcache.bench.index import NAMES, measure
from prefixcache.bench.index_rows import as_data, as_text


@click.command("index", epilog="Example: prefixcache bench index --workload A,B --json result.json")
@click.option(
    "--workload",
    "names",
    metavar="NAME,...",
    default=",".join(NAMES),
    show_default=True,
    callback=each(one_of(NAMES)),
    help="Which to run.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Runs of each, of which every figure is the median; D is measured once.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result here.")
def index(names: tuple[str, ...], repeats: int, json_file: Path | None) -> None:
    """What the index costs by itself: no model, no HTTP.

    \b
    A      requests that share system prompts
    B      a prompt of 128,000 tokens, beside the comparison of its bytes alone
    C      chats in a pool that is too small
    C2     eviction among 1,000, 25,000 and 200,000 leaves
    D      memory of a million blocks
    chain  a conversation of 2,000 turns
    """
    rows = []
    for row in measure(names, repeats=repeats, clock=time.thread_time):
        rows.append(row)
        click.echo(as_text(row))
    if json_file is not None:
        save(json_file, {"repeats": repeats, "rows": as_data(rows)})
