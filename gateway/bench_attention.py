"""The command `prefixcache bench attention`."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from gateway.bench import each, save
from prefixcache.bench.attention import SHAPE, AttentionBench, DecodeRow, PromptRow, as_text

MOST = 1 << 17


def _number(text: str, *, least: int, step: int = 1) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= MOST:
        raise click.BadParameter(f"{text!r} is not a number from {least} to {MOST}")
    if int(text) % step:
        raise click.BadParameter(f"{text} is not a multiple of {step}")
    return int(text)


@click.command(
    "attention", epilog="Example: prefixcache bench attention --prefix 4096 --json result.json"
)
@click.option(
    "--prefix",
    "prefix_tokens",
    metavar="N,...",
    default="1024,4096",
    show_default=True,
    callback=each(partial(_number, least=16, step=16)),
    help="Tokens that the streams share, whole blocks of 16.",
)
@click.option(
    "--streams",
    metavar="N,...",
    default="1,2,8,32",
    show_default=True,
    callback=each(partial(_number, least=1)),
    help="Streams of a decode step, with tails of 16 to 128 tokens.",
)
@click.option(
    "--new",
    "new_tokens",
    metavar="N,...",
    default="128,512",
    show_default=True,
    callback=each(partial(_number, least=1)),
    help="Tokens of a chunk of a prompt.",
)
@click.option(
    "--cached",
    "cached_tokens",
    metavar="N,...",
    default="0,1024,4096",
    show_default=True,
    callback=each(partial(_number, least=0, step=16)),
    help="Tokens before such a chunk, whole blocks of 16.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result here.")
def attention(
    prefix_tokens: tuple[int, ...],
    streams: tuple[int, ...],
    new_tokens: tuple[int, ...],
    cached_tokens: tuple[int, ...],
    repeats: int,
    json_file: Path | None,
) -> None:
    """What attention costs by itself, in the shape of SmolLM2-135M.

    Decode steps of streams that share a prefix, which is read once for all of them, beside the
    same with each stream attending alone (apart: in one step; alone: in a step of its own). Then
    chunks of a prompt after cached tokens. CPU time of one thread.
    """
    bench = AttentionBench(prefix_tokens, streams, new_tokens, cached_tokens, repeats)
    rows = []
    for row in bench.measure(time.process_time):
        rows.append(row)
        click.echo(as_text(row))
    if json_file is not None:
        result: dict[str, object] = {"shape": asdict(SHAPE), "repeats": repeats}
        for name, kind in (("decodes", DecodeRow), ("prompts", PromptRow)):
            result[name] = [asdict(row) for row in rows if isinstance(row, kind)]
        save(json_file, result)
