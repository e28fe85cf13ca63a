"""The commands `prefixcache tenants`: a running server's tenants, and new keys."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from gateway.api.admin import TenantCard, TenantList
from gateway.client.admin import ask_server, json_text, key_file_option
from gateway.config import AdminConfig
from gateway.keys import hash_of, new_key
from gateway.tables import as_columns, count_text
from gateway.tenants import TenantConfig

_HEADINGS = ("tenant", "keys", "running", "waiting", "requests left", "tokens left", "this month")


class _ByUrl(click.Group):
    """A group whose command `show` needs not be named."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Take what is neither a command nor an option for the URL to show."""
        if args and args[0] not in self.commands and args[0] not in context.help_option_names:
            args = ["show", *args]
        return super().parse_args(context, args)


@click.group(
    "tenants", cls=_ByUrl, epilog="Example: prefixcache tenants http://127.0.0.1:8000 --json"
)
def tenants() -> None:
    """Show a server's tenants (prefixcache tenants URL), or make a key for one."""


@tenants.command("show", epilog="Example: prefixcache tenants show http://127.0.0.1:8000")
@click.argument("url")
@key_file_option
@click.option("--json", "as_json", is_flag=True, help="Print what the server answers.")
def show(url: str, *, key_file: Path | None, as_json: bool) -> None:
    """Show the tenants of the server at URL: what they may have and what they use now."""
    found = ask_server(url, "/admin/tenants", TenantList, key_file=key_file)
    if as_json:
        click.echo(json_text(found))
        return
    click.echo(as_columns([_HEADINGS, *map(_line, found.data)]))


@tenants.command("new-key", epilog="Example: prefixcache tenants new-key acme")
@click.argument("name")
def make_key(name: str) -> None:
    """Print a new key for the tenant NAME, once, and what the configuration needs of it.

    The name admin makes a key for the admin routes.
    """
    key = new_key(secrets.token_bytes)
    if name == "admin":
        table, hashes = "admin", AdminConfig(key_hashes=(hash_of(key),)).key_hashes
    else:
        config = TenantConfig(key_hashes=(hash_of(key),))
        config.check(name)
        table, hashes = f"tenants.{_toml_key(name)}", config.key_hashes
    click.echo(f"The key, which is shown only now: {key}")
    click.echo("For the configuration file:")
    click.echo(f'\n[{table}]\nkey_hashes = ["{hashes[0]}"]')


def _line(card: TenantCard) -> tuple[str, ...]:
    now = card.now
    counts = (
        card.n_keys,
        now.concurrent_requests,
        now.queued,
        now.requests_remaining,
        now.tokens_remaining,
        now.month_tokens,
    )
    return (card.name, *map(count_text, counts))


def _toml_key(name: str) -> str:
    """Return `name` as a part of a table's header: a dot in it needs quotes."""
    return f'"{name}"' if "." in name else name
