"""The command `prefixcache bench gateway`."""

from __future__ import annotations

import os
import tempfile
from itertools import chain
from pathlib import Path

import click

from gateway.bench import save
from gateway.bench_serve import read_pairs
from gateway.client.gateway_cost import Setting, rates
from gateway.client.gateway_strain import large_prompts, open_streams
from gateway.client.own_server import run_to_the_end
from prefixcache.bench.small_model import small_model_folder

_LARGE_AT_ONCE = 4
_STREAMS_BESIDE = 16
_Result = dict[str, list[dict[str, object]]]


@click.command("gateway", epilog="Example: prefixcache bench gateway --seconds 2 --json cost.json")
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with a tokenizer.  [default: the small chat model's]",
)
@click.option(
    "--url",
    "urls",
    metavar="NAME=URL",
    multiple=True,
    callback=read_pairs,
    help="Another gateway on this machine, to compare; may be given several times.",
)
@click.option("--plain-port", type=click.IntRange(0, 65535), default=0, show_default=True)
@click.option(
    "--tokens",
    "lengths",
    type=click.IntRange(1, 1000),
    multiple=True,
    default=(64, 256),
    show_default=True,
    help="Of an answer; may be given several times.",
)
@click.option("--at-once", type=click.IntRange(min=1), multiple=True, default=(1, 16, 64))
@click.option("--seconds", type=click.FloatRange(min=0.1), default=1.0, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--streams", type=click.IntRange(min=1), default=2000, show_default=True)
@click.option("--large-seconds", type=click.FloatRange(min=0.1), default=20.0, show_default=True)
@click.option("--large-bytes", type=click.IntRange(min=1000), default=5 * 10**6, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result here.")
def gateway(
    model: Path | None,
    urls: dict[str, str],
    plain_port: int,
    lengths: tuple[int, ...],
    at_once: tuple[int, ...],
    seconds: float,
    repeats: int,
    streams: int,
    large_seconds: float,
    large_bytes: int,
    json_file: Path | None,
) -> None:
    """What the gateway costs by itself: no model, one core, its client on another.

    Rates and latencies, streamed and not, in turns with the plainest handler that sends the same
    bytes; the memory of open streams; and how /health and streams go on beside large prompts.
    Other gateways can be had to pass requests on to the plain handler, at --plain-port.
    """
    folder = model or small_model_folder(os.environ, _say)

    async def run() -> _Result:
        with tempfile.TemporaryDirectory() as scratch:
            setting = Setting.on_two_cores(Path(scratch), folder)
            rows = []
            for n_tokens in lengths:
                rows += await rates(
                    setting,
                    urls,
                    at_once=at_once,
                    n_tokens=n_tokens,
                    seconds=seconds,
                    repeats=repeats,
                    plain_port=plain_port,
                    report=_say,
                )
            held = await open_streams(setting, streams)
            _say(str(held))
            large = await large_prompts(
                setting,
                at_once=_LARGE_AT_ONCE,
                n_bytes=large_bytes,
                n_streams=_STREAMS_BESIDE,
                seconds=large_seconds,
            )
        return {"rows": rows, "open_streams": [held], "large_prompts": large}

    result = run_to_the_end(run())
    for row in chain.from_iterable(result.values()):
        click.echo("  ".join(f"{name}={value}" for name, value in row.items()))
    if json_file is not None:
        save(json_file, {"tokenizer": folder.name, **result})


def _say(line: str) -> None:
    click.echo(line, err=True)
