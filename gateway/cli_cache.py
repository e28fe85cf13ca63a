"""The commands `prefixcache tree` and `prefixcache invalidate`: a running server's cache."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.api.steering import Invalidated
from gateway.client.admin import ask_server, json_text, key_file_option, tell_server
from gateway.tree_text import as_text
from prefixcache.control import Inspection

_KINDS = ("everything", "model", "adapter", "tenant", "prompt")


@click.command("tree", epilog="Example: prefixcache tree http://127.0.0.1:8000 --tenant acme")
@click.argument("url")
@click.option("--tenant", help="This tenant alone.")
@click.option(
    "--max-nodes",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="So many nodes of all trees together.",
)
@key_file_option
@click.option("--json", "as_json", is_flag=True, help="Print what the server answers.")
def tree(
    url: str, *, tenant: str | None, max_nodes: int, key_file: Path | None, as_json: bool
) -> None:
    """Show the trees of cached prefixes of the server at URL: how long, whose, how long unused.

    Each line is a part of a prefix, under the part before it. Its bar begins where it does.
    """
    query = {"max_nodes": str(max_nodes)} | ({} if tenant is None else {"tenant": tenant})
    found = ask_server(url, "/admin/tree", Inspection, key_file=key_file, **query)
    click.echo(json_text(found) if as_json else as_text(found))


@click.command(
    "invalidate", epilog="Example: prefixcache invalidate http://127.0.0.1:8000 tenant acme"
)
@click.argument("url")
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("name", required=False)
@click.argument("version", type=click.IntRange(min=1), required=False)
@key_file_option
def invalidate(
    url: str, kind: str, name: str | None, version: int | None, *, key_file: Path | None
) -> None:
    """Make what the server at URL has cached unmatchable: all, or what KIND and NAME say.

    It holds when the command returns. Requests that run go on. A prompt is retired by it.
    """
    given: dict[str, object] = {"kind": kind, "name": name, "version": version}
    body = {field: value for field, value in given.items() if value is not None}
    path = "/admin/invalidate"
    done = tell_server(url, ("POST", path), Invalidated, key_file=key_file, body=body)
    versions = "".join(f" version {each}" for each in done.versions)
    click.echo(f"invalidated {done.kind}{'' if done.name is None else f' {done.name}'}{versions}")
