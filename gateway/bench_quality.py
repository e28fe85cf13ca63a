"""The command `prefixcache bench quality`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast, get_args

import click

from gateway.bench import each, one_of, pruning, save
from prefixcache.bench.kv_formats import (
    compare_formats,
    formats_table,
    long_text,
)
from prefixcache.bench.kv_pruning import compare_prunings, prunings_table
from prefixcache.bench.quality import as_data, as_table, compare, own_text
from prefixcache.config import EngineConfig, KVFormatName, WeightsName

_ROOM_BYTES = 512 * 1024**2  # for the KV of what is measured


_FORMATS = each(one_of(get_args(KVFormatName)))
_PRUNINGS = each(pruning)


@click.command("quality", epilog="Example: prefixcache bench quality --weights int8")
@click.option("--model", help="As for serve.  [default: the small chat model]")
@click.option(
    "--weights",
    callback=each(one_of(get_args(WeightsName))),
    default="16bit,int8",
    show_default=True,
    metavar="NAME,...",
    help="What to hold to float32.",
)
@click.option(
    "--kv-format",
    "kv_formats",
    callback=_FORMATS,
    metavar="NAME,...",
    help="Compare formats of cached state instead, with the model's own.",
)
@click.option(
    "--kv-prune",
    "prunings",
    callback=_PRUNINGS,
    metavar="FIRST+RECENT,...",
    help="Compare pruned state instead, with all of it.",
)
@click.option(
    "--text",
    "text_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="UTF-8 text to predict.  [default: one of our own]",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=25, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result here.")
def quality(
    model: str | None,
    weights: tuple[str, ...],
    kv_formats: tuple[KVFormatName, ...],
    prunings: tuple[str, ...],
    text_file: Path | None,
    threads: int,
    repeats: int,
    json_file: Path | None,
) -> None:
    """Hold 16-bit and int8 weights to float32: how a text is predicted, and how fast.

    `KL` is the divergence from float32 in nats a token, `agree` the share of tokens after which
    the best next token is the same. With --kv-format it is weights that stay, and cached state
    that is kept in fewer bits; with --kv-prune cached state of which the middle is dropped, over
    the tokens that lack some.
    """
    if kv_formats and prunings:
        raise click.UsageError("--kv-format and --kv-prune are compared one at a time")
    config = EngineConfig(model=model, threads=threads, kv_memory_bytes=_ROOM_BYTES)
    given = None if text_file is None else text_file.read_text(encoding="utf-8")
    if kv_formats:
        found = compare_formats(
            config,
            kv_formats,
            long_text() if given is None else given,
            repeats=repeats,
            env=os.environ,
            report=_report,
        )
        _tell(formats_table(found), as_data(found), json_file)
        return
    if prunings:
        kept = compare_prunings(
            config,
            prunings,
            long_text() if given is None else given,
            env=os.environ,
            report=_report,
        )
        _tell(prunings_table(kept), as_data(kept), json_file)
        return
    rows = list(
        compare(
            config,
            cast(tuple[WeightsName, ...], weights),
            own_text() if given is None else given,
            repeats=repeats,
            env=os.environ,
            report=_report,
        )
    )
    _tell(as_table(rows), as_data(rows), json_file)


def _report(line: str) -> None:
    click.echo(line, err=True)


def _tell(table: str, rows: list[dict[str, object]], json_file: Path | None) -> None:
    click.echo(table)
    if json_file is not None:
        save(json_file, {"results": rows})
