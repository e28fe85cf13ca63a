"""The command `prefixcache bench first-token`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gateway.bench import save
from gateway.client.first_token import Row, as_data, as_table, measure
from gateway.client.own_server import own_server, run_to_the_end
from prefixcache.bench.straight import StraightStep
from prefixcache.config import EngineConfig


@click.command(
    "first-token",
    epilog="Example: prefixcache bench first-token --prefix 4096 --json result.json",
)
@click.option("--model", help="As for serve.  [default: the small chat model]")
@click.option(
    "--prefix",
    "prefix_tokens",
    type=click.IntRange(min=64),
    multiple=True,
    default=(1024, 4096),
    show_default=True,
    help="Tokens that the requests share; may be given several times.",
)
@click.option("--new", "new_tokens", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result here.")
def first_token(
    model: str | None,
    prefix_tokens: tuple[int, ...],
    new_tokens: int,
    repeats: int,
    seed: int,
    json_file: Path | None,
) -> None:
    """Time to first token with nothing cached and with the shared prefix cached.

    A server is started for it. The last column sets the warm time against the same new tokens run
    straight on a store that holds the prefix: no tree, no scheduler, no HTTP.
    """
    straight = StraightStep(
        EngineConfig(model=model), env=os.environ, report=lambda line: click.echo(line, err=True)
    )

    async def run() -> list[Row]:
        async with own_server(["--model", model] if model else []) as own:
            return await measure(
                own.url,
                straight,
                prefix_tokens=prefix_tokens,
                new_tokens=new_tokens,
                repeats=repeats,
                seed=seed,
            )

    rows = run_to_the_end(run())
    click.echo(as_table(rows))
    if json_file is not None:
        save(json_file, {"model": model or "SmolLM2-135M-Instruct", "rows": as_data(rows)})
