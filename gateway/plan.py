"""The command `prefixcache plan`."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.bench import each, pruning, save
from gateway.plan_text import as_data, as_text
from prefixcache.errors import ConfigError
from prefixcache.plan import (
    FORMATS,
    USUAL_EFFICIENCY,
    WEIGHT_BITS,
    Device,
    KvFormat,
    Question,
    Room,
    format_of,
    known_devices,
    known_models,
    kv_format,
    make_plan,
    read_config,
    read_devices,
    read_replay,
    shape_of,
    weights_of,
)

_FILE = click.Path(path_type=Path)
_ROOM = Room()


def _tokens(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise click.BadParameter(f"{text!r} is no number of tokens above 0")
    return int(text)


def _format(text: str) -> KvFormat:
    try:
        return kv_format(text)
    except ConfigError as error:
        raise click.BadParameter(f"{text!r}: {error.reason}") from error


def _chosen(names: tuple[str, ...], known: dict[str, Device]) -> dict[str, Device]:
    """Return the devices of these names, all where none is named."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(f"no device {unknown[0]!r}; known are {', '.join(known)}")
    return {name: known[name] for name in names or known}


@click.command(
    "plan",
    epilog="Example: prefixcache plan Llama-3.1-8B --context 8192,131072 --requests 64"
    " --shared 2000 --device h100",
)
@click.argument("model")
@click.option(
    "--context",
    "contexts",
    callback=each(_tokens),
    default="8192",
    show_default=True,
    metavar="N,...",
    help="Tokens of a request, prompt and output together.",
)
@click.option(
    "--requests", type=click.IntRange(min=1), default=1, show_default=True, help="At once."
)
@click.option(
    "--shared",
    "shared_tokens",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="First tokens that all requests have in common.",
)
@click.option(
    "--kv-format",
    "formats",
    callback=lambda context, parameter, text: text and each(_format)(context, parameter, text),
    metavar="NAME,...",
    help=f"Of {', '.join(FORMATS)}.  [default: the checkpoint's own]",
)
@click.option(
    "--kv-prune",
    callback=lambda _context, _parameter, text: None if text is None else pruning(text),
    metavar="S+W",
    help="As of `serve`: so many first and recent tokens are kept.  [default: all]",
)
@click.option(
    "--weights",
    "kept",
    type=click.Choice(tuple(WEIGHT_BITS)),
    help="How weights are kept.  [default: as they are]",
)
@click.option(
    "--device",
    "names",
    multiple=True,
    help="May be given several times.  [default: all that are known]",
)
@click.option("--devices", "device_file", type=_FILE, help="TOML file with devices of your own.")
@click.option(
    "--memory-share",
    type=click.FloatRange(0, 1, min_open=True),
    default=_ROOM.memory_share,
    show_default=True,
    help="Of a device's memory that may be used.",
)
@click.option(
    "--efficiency",
    type=click.FloatRange(0, 1, min_open=True),
    default=USUAL_EFFICIENCY,
    show_default=True,
    help="Of a device's arithmetic that reading prompts gets.",
)
@click.option("--replay", "replay_file", type=_FILE, help="Result of `prefixcache replay --json`.")
@click.option("--json", "json_file", type=_FILE, help="Write the plan here as well.")
def plan(
    *,
    model: str,
    contexts: tuple[int, ...],
    requests: int,
    shared_tokens: int,
    formats: tuple[KvFormat, ...] | None,
    kv_prune: str | None,
    kept: str | None,
    names: tuple[str, ...],
    device_file: Path | None,
    memory_share: float,
    efficiency: float,
    replay_file: Path | None,
    json_file: Path | None,
) -> None:
    """Tell what the KV of a model needs and what fits where, from its configuration alone.

    MODEL is a folder with a config.json, such a file, or a name that is known offline.
    """
    devices = dict(known_devices())
    if device_file is not None:
        devices |= read_devices(device_file)
    name, config = read_config(model)
    whole = shape_of(name, config)
    shape = whole if kv_prune is None else whole.pruned(kv_prune)
    question = Question(
        contexts=contexts,
        formats=formats or (format_of(shape.number_bytes),),
        requests=requests,
        shared_tokens=shared_tokens,
        devices=_chosen(names, devices),
        room=Room(memory_share=memory_share),
        replays=() if replay_file is None else read_replay(replay_file),
    )
    made = make_plan(shape, weights_of(model, config, shape, kept), question)
    click.echo(as_text(made, efficiency=efficiency))
    if json_file is not None:
        save(json_file, as_data(made))


plan.help = f"{plan.help}\n\nKnown names: {', '.join(known_models())}."
