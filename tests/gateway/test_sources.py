"""Where settings come from, and which goes before which."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.config import Settings, load_config
from gateway.keys import hash_of, new_key
from gateway.settings import Sources
from prefixcache.errors import ConfigError

HASH, OTHER_HASH = (hash_of(f"{number}" * 32) for number in range(2))


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_go_before_the_environment_before_the_file(tmp_path: Path) -> None:
    """Each setting has the value of the first source that has it."""
    file = write(tmp_path, "[server]\nport = 1\nmax_choices = 1\nmax_stop = 1\n")
    env = {"PREFIXCACHE_SERVER__PORT": "2", "PREFIXCACHE_SERVER__MAX_CHOICES": "2"}
    server = Sources(file, env, {"server": {"port": 3}}).read().server
    assert (server.port, server.max_choices, server.max_stop, server.max_tools) == (3, 2, 1, 256)
    assert Sources().read() == Settings()


def test_a_variable_gives_any_kind_of_setting() -> None:
    """Texts, numbers and switches as they are; lists and tables as JSON; parts of tables, too."""
    env = {
        "PREFIXCACHE_SERVER__HOST": "0.0.0.0",  # noqa: S104
        "PREFIXCACHE_SERVER__DRAIN_SECONDS": "2.5",
        "PREFIXCACHE_ENGINE__THREADS": "2",
        "PREFIXCACHE_ENGINE__INVARIANT": "true",
        "PREFIXCACHE_ENGINE__ADAPTERS": '{"a": "b"}',
        "PREFIXCACHE_TENANTS__ACME__KEY_HASHES": json.dumps([HASH]),
        "PREFIXCACHE_TENANTS__ACME__KV__RESERVED_TOKENS": "64",
        "PREFIXCACHE_ADMIN__KEY_HASHES": json.dumps([OTHER_HASH]),
        "PREFIXCACHE_HOME": "/somewhere",
        "PREFIXCACHE_KEY": "the commands' own",
        "PATH": "/bin",
    }
    settings = Sources(env=env).read()
    assert (settings.server.host, settings.server.drain_seconds) == ("0.0.0.0", 2.5)  # noqa: S104
    assert (settings.engine.threads, settings.engine.invariant) == (2, True)
    assert settings.engine.adapters == {"a": "b"}
    assert settings.tenants["acme"].key_hashes == (HASH,)
    assert settings.tenants["acme"].kv.reserved_tokens == 64
    assert settings.admin.key_hashes == (OTHER_HASH,)


def test_adapters_of_flags_are_added(tmp_path: Path) -> None:
    """A flag adds to the file's adapters, and wins where both have one."""
    file = write(tmp_path, '[engine.adapters]\na = "1"\nb = "2"\n')
    engine = Sources(file, flags={"engine": {"adapters": {"b": "3", "c": "4"}}}).read().engine
    assert engine.adapters == {"a": "1", "b": "3", "c": "4"}


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("PREFIXCACHE_SERVER__PROT", "1", "no setting server.prot"),
        ("PREFIXCACHE_SEVRER__PORT", "1", "no setting sevrer.port"),
        ("PREFIXCACHE_SERVER__PORT__X", "1", "no setting server.port.x"),
        ("PREFIXCACHE_SERVER_PORT", "1", "PREFIXCACHE_SERVER__PORT"),
        ("PREFIXCACHE_ENGINE", "1", "PREFIXCACHE_ENGINE__THREADS"),
        ("PREFIXCACHE_SERVER__PORT", "x", "int"),
        ("PREFIXCACHE_SERVER__PORT", "99999", "65535"),
        ("PREFIXCACHE_ENGINE__INVARIANT", "perhaps", "bool"),
        ("PREFIXCACHE_ENGINE__DTYPE", "int3", "Invalid enum"),
        ("PREFIXCACHE_TENANTS__ACME", "{}", "is a table"),
        ("PREFIXCACHE_TENANTS__", "1", "no setting tenants"),
        ("PREFIXCACHE_TENANTS__ACME__KEY_HASHES", HASH, "JSON"),
        ("PREFIXCACHE_TENANTS__ACME__COLOUR", "1", "no setting tenants.acme.colour"),
    ],
)
def test_a_variable_that_is_no_setting_stops_the_start(variable: str, text: str, said: str) -> None:
    """Unknown names with our prefix, and texts of the wrong type, are one line that says which."""
    with pytest.raises(ConfigError, match=said) as caught:
        Sources(env={variable: text}).read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenants.acme]\nrequests_per_minute = -1", "tenants.acme.requests_per_minute"),
        ("[tenants.acme]\nmax_queued = 1.5", "max_queued"),
        ("[tenants.acme]\npriority = 2147483647", "tenants.acme.priority"),
        ("[tenants.acme.kv]\nreserved_tokens = 9\nmax_tokens = 8", "max_tokens"),
        ("[tenants.acme.kv]\nweight = 0", "weight"),
        ("[tenants.acme]\nlimit = 1", "limit"),
        ('[tenants."a b"]\n', "letters"),
        ('[tenants."(system)"]\n', "letters"),
        ("[tenants.acme]\nrequests_per_minute = 1", "no API keys are configured"),
        (f'[tenants.a]\nkey_hashes=["{HASH}"]\n[admin]\nkey_hashes=["{HASH}"]', "the same key"),
        (f'[tenants.a]\nkey_hashes=["{HASH}"]\n[tenants.b]\nkey_hashes=["{HASH}"]', "same key"),
        ("[server]\nusage_db = ''", "usage_db"),
        ("[server]\nmax_tenant_labels = -1", "max_tenant_labels"),
    ],
)
def test_tenants_are_checked(tmp_path: Path, text: str, said: str) -> None:
    """What cannot be right is refused at the start, with the tenant and the setting."""
    with pytest.raises(ConfigError, match=said):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize("table", ["tenants.acme", "admin"])
def test_a_key_in_a_hash_s_place_is_not_repeated(tmp_path: Path, table: str) -> None:
    """Whoever pastes the key itself is told so, in words that do not have it."""
    key = new_key(os.urandom)
    text = f'[{table}]\nkey_hashes = ["{HASH}", "{key}"]'
    with pytest.raises(ConfigError, match=r"key_hashes\[1\]") as caught:
        load_config(write(tmp_path, text))
    assert key not in str(caught.value)
    variable = f"PREFIXCACHE_{table.replace('.', '__').upper()}__KEY_HASHES"
    for value in (key, f'["{key}"]', f'[{{"a": "{key}"}}]'):
        with pytest.raises(ConfigError) as caught:
            Sources(env={variable: value}).read()
        assert key not in str(caught.value)


def test_the_default_tenant_needs_no_key(tmp_path: Path) -> None:
    """Without keys its limits can still be set."""
    settings = load_config(write(tmp_path, "[tenants.default]\nmax_queued = 4"))
    assert not settings.has_keys
    assert settings.tenants["default"].max_queued == 4
