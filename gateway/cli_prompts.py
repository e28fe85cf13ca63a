"""The commands `prefixcache prompts URL ...`: what a running server has published."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import click

from gateway.api.prompt_cards import PromptCard
from gateway.api.prompts import PromptList, PromptsRetired
from gateway.client.admin import ask_server, json_text, key_file_option, tell_server
from gateway.tables import as_columns, count_text
from prefixcache.errors import ConfigError

_HEADINGS = ("prompt", "version", "status", "tokens", "cached", "for", "until")
_READ_SECONDS = 600.0  # a long prompt is read before it is published


@click.group(
    "prompts",
    invoke_without_command=True,
    epilog="Example: prefixcache prompts http://127.0.0.1:8000 publish support.toml",
)
@click.argument("url")
@key_file_option
@click.pass_context
def prompts(context: click.Context, url: str, *, key_file: Path | None) -> None:
    """Show what the server at URL has published, publish a prompt, or retire one."""
    context.obj = (url, key_file)
    if context.invoked_subcommand is None:
        context.invoke(list_prompts)


@prompts.command("list", epilog="Example: prefixcache prompts http://127.0.0.1:8000 list --json")
@click.option("--json", "as_json", is_flag=True, help="Print what the server answers.")
@click.pass_obj
def list_prompts(server: tuple[str, Path | None], *, as_json: bool = False) -> None:
    """Show the prompts, how much of each is cached, for whom, and until when."""
    url, key_file = server
    found = ask_server(url, "/v1/prompts", PromptList, key_file=key_file)
    click.echo(json_text(found) if as_json else as_columns([_HEADINGS, *map(_line, found.data)]))


@prompts.command(
    "publish", epilog="Example: prefixcache prompts http://127.0.0.1:8000 publish support.toml"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def publish(server: tuple[str, Path | None], file: Path) -> None:
    """Publish the prompt in a TOML file, which has the fields of POST /v1/prompts.

    Returns when it can be matched. The version before it is retired then.
    """
    url, key_file = server
    card = tell_server(
        url,
        ("POST", "/v1/prompts"),
        PromptCard,
        key_file=key_file,
        body=_read(file),
        timeout_seconds=_READ_SECONDS,
    )
    click.echo(as_columns([_HEADINGS, _line(card)]))


@prompts.command(
    "retire", epilog="Example: prefixcache prompts http://127.0.0.1:8000 retire support 3"
)
@click.argument("name")
@click.argument("version", type=click.IntRange(min=1), required=False)
@click.pass_obj
def retire(server: tuple[str, Path | None], name: str, version: int | None) -> None:
    """Retire the prompt NAME, or its VERSION alone, at once."""
    url, key_file = server
    path = f"/v1/prompts/{name}" if version is None else f"/v1/prompts/{name}/{version}"
    done = tell_server(url, ("DELETE", path), PromptsRetired, key_file=key_file)
    for each in done.versions:
        click.echo(f"retired {done.name} version {each}")


def _read(file: Path) -> Mapping[str, object]:
    """Return the fields in a file. Raises ConfigError: it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("file", str(file), error.strerror or "cannot be read") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("file", str(file), str(error)) from error


def _line(card: PromptCard) -> tuple[str, ...]:
    audience = "all" if not card.tenants else ", ".join(card.tenants)
    until = "-"
    if card.expires is not None:
        until = datetime.fromtimestamp(card.expires, UTC).strftime("%Y-%m-%d %H:%M")
    counts = (count_text(card.n_tokens), count_text(card.cached_tokens))
    return (card.name, str(card.version), card.status, *counts, audience, until)
