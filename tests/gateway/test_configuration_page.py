"""The manual's page on settings is about the settings that there are."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import AdminConfig, GatewayConfig, settings_of
from gateway.keys import hash_of
from gateway.settings import Sources, variable_of
from gateway.tenants import TenantConfig
from prefixcache.config import EngineConfig
from prefixcache.control import TenantQuota

MANUAL = Path(__file__).parents[2] / "gateway/manual"
PAGE = (MANUAL / "configuration.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w.]+)` \| (\S+|`.*?`) \| (.+) \|$", re.M)
TABLES: dict[str, Any] = {
    "server": GatewayConfig,
    "engine": EngineConfig,
    "tenants.NAME": TenantConfig,
    "admin": AdminConfig,
}


def section(table: str) -> str:
    """Return what stands under a table's heading."""
    _, found, rest = PAGE.partition(f"\n## [{table}]\n")
    assert found
    return rest.partition("\n## ")[0]


def defaults(kind: Any) -> Iterator[tuple[str, object]]:
    """Yield each setting of a table, and what it is if nothing is said."""
    for name in kind.__struct_fields__:
        value = getattr(kind(), name)
        if isinstance(value, TenantQuota):
            yield from ((f"{name}.{inner}", each) for inner, each in defaults(TenantQuota))
        else:
            yield name, list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_is_listed_with_its_default(table: str) -> None:
    """Each is one row of its table, with its default and what it does; there are no others."""
    rows = {name: (shown, text) for name, shown, text in ROW.findall(section(table))}
    assert rows.keys() == dict(defaults(TABLES[table])).keys()
    for name, default in defaults(TABLES[table]):
        shown, text = rows[name]
        assert (None if shown == "none" else json.loads(shown.strip("`"))) == default, name
        assert len(text) > 5, name


def test_there_are_no_more_tables() -> None:
    """The headings are the tables of the file."""
    assert re.findall(r"^## \[(.*)\]$", PAGE, re.M) == list(TABLES)


def test_the_example_is_a_configuration() -> None:
    """What the page shows as a file is one, once its hashes are whole."""
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    settings = settings_of(tomllib.loads(whole(example)), "the page")
    assert settings.tenants["acme"].kv == TenantQuota(reserved_tokens=16384, max_tokens=65536)


def test_the_variables_of_the_page_are_read() -> None:
    """Each variable that is shown with a value is a setting."""
    found = dict(re.findall(r"`(PREFIXCACHE_\w+__\w+)='?(.*?)'?`", PAGE))
    assert found["PREFIXCACHE_SERVER__PORT"] == "9000"
    assert variable_of("server", "port") in found
    settings = Sources(env={name: whole(text) for name, text in found.items()}).read()
    assert (settings.server.port, len(settings.tenants["acme"].key_hashes)) == (9000, 1)


def test_the_example_of_tenants_is_a_configuration() -> None:
    """So is the one on the page about tenants."""
    page = (MANUAL / "tenants.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    settings = settings_of(tomllib.loads(whole(example)), "the page")
    assert settings.tenants["acme"].requests_per_minute == 600
    assert settings.admin.key_hashes


def whole(text: str) -> str:
    """Return `text` with a whole hash for each that is cut short, each another."""
    return re.sub(r"sha256:(\w*)\.\.\.", lambda cut: hash_of(cut[1]), text)
