"""The commands `prefixcache cache ls|verify|prune`: a folder of blocks on a disk."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gateway.config import parse_bytes
from gateway.tables import as_columns, count_text
from prefixcache.errors import ConfigError
from prefixcache.tiers.disk import ModelShare, Survey, Trouble, prune, survey

_SHOWN_DIGITS = 12  # of a digest
_MEANINGS = {
    "checksum": "damaged",
    "cut_short": "cut short",
    "version": "of another version, or not ours",
    "unaccounted": "nobody knows what was invalidated since",
}

_folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.group("cache", epilog="Example: prefixcache cache ls ./kv")
def cache() -> None:
    """Show, check or shrink a folder of cached blocks, as `serve --disk` keeps it."""


@cache.command("ls", epilog="Example: prefixcache cache ls ./kv")
@_folder
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(folder: Path, *, as_json: bool) -> None:
    """Show what of DIR is which model's, what is dead, and what is not ours to read."""
    found = survey(folder, verify=False)
    click.echo(_as_json(found) if as_json else _as_text(found))


@cache.command("verify", epilog="Example: prefixcache cache verify ./kv")
@_folder
@click.pass_context
def verify(context: click.Context, folder: Path) -> None:
    """Read every byte of DIR and compare the checksums; exit with 1 where one is wrong.

    A server would leave out what is damaged; prune gives its room back.
    """
    found = survey(folder, verify=True)
    for trouble in found.damage:
        click.echo(_line(trouble))
    click.echo(f"{count_text(found.n_blocks)} blocks are whole{_in_use(found)}")
    context.exit(1 if found.damage else 0)


@cache.command("prune", epilog="Example: prefixcache cache prune ./kv --max-size 10GiB")
@_folder
@click.option("--max-size", metavar="SIZE", help="The oldest blocks go until all takes no more.")
@click.option(
    "--model", "models", metavar="DIGEST", multiple=True, help="This model's blocks go; see ls."
)
@click.option("--others", is_flag=True, help="Files go that are of another version.")
def prune_command(
    folder: Path, *, max_size: str | None, models: tuple[str, ...], others: bool
) -> None:
    """Remove from DIR what is invalidated or damaged, and what the options say.

    No server may use DIR meanwhile.
    """
    max_bytes = None if max_size is None else parse_bytes(max_size)
    found = survey(folder, verify=False)
    chosen = [_model(found, digits) for digits in models]
    left = prune(found, folder, models=chosen, max_bytes=max_bytes, others=others)
    click.echo(f"{count_text(found.n_bytes)} bytes before, {count_text(left)} now")


def _model(found: Survey, digits: str) -> bytes:
    """Return the model whose digest begins so. Raises ConfigError: there is not just one."""
    fits = [share.model for share in found.models if share.model.hex().startswith(digits.lower())]
    if len(fits) != 1:
        raise ConfigError("--model", digits, f"{len(fits)} models begin so; see ls for their names")
    return fits[0]


def _as_text(found: Survey) -> str:
    head = ("model", "adapters", "tenants", "blocks", "tokens", "bytes")
    lines = [head, *map(_cells, found.models)]
    summary = (
        f"{count_text(found.n_files)} files of blocks, {count_text(found.n_bytes)} bytes in all,"
        f" {count_text(found.wasted_bytes)} of them invalidated or replaced{_in_use(found)}"
    )
    troubles = map(_line, [*found.damage, *found.left_alone])
    return "\n".join([as_columns(lines), summary, *troubles])


def _cells(share: ModelShare) -> tuple[str, ...]:
    counts = (share.n_adapters, share.n_tenants, share.n_blocks, share.n_tokens, share.n_bytes)
    return share.model.hex()[:_SHOWN_DIGITS], *map(count_text, counts)


def _as_json(found: Survey) -> str:
    models = [
        {
            "model": share.model.hex(),
            "adapters": share.n_adapters,
            "tenants": share.n_tenants,
            "blocks": share.n_blocks,
            "tokens": share.n_tokens,
            "bytes": share.n_bytes,
        }
        for share in found.models
    ]
    return json.dumps(
        {
            "in_use": found.is_in_use,
            "files": found.n_files,
            "bytes": found.n_bytes,
            "wasted_bytes": found.wasted_bytes,
            "models": models,
            "damage": [{"place": it.place, "reason": it.reason} for it in found.damage],
            "left_alone": [{"place": it.place, "reason": it.reason} for it in found.left_alone],
        },
        indent=2,
    )


def _line(trouble: Trouble) -> str:
    return f"{trouble.place}: {_MEANINGS.get(trouble.reason, trouble.reason)}"


def _in_use(found: Survey) -> str:
    return "; a server uses it now" if found.is_in_use else ""
