"""Settings: read once, and refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import GatewayConfig, Settings, load_config, parse_bytes
from prefixcache.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_fills_both_tables(tmp_path: Path) -> None:
    """What the file says is taken; what it leaves out has its default."""
    path = write(tmp_path, "[server]\nport = 9\ndrain_seconds = 5\n[engine]\nthreads = 2\n")
    settings = load_config(path)
    assert settings.server == GatewayConfig(port=9, drain_seconds=5)
    assert settings.engine.threads == 2
    assert load_config(write(tmp_path, "")) == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nprot = 9", "prot"),
        ("[severs]\n", "severs"),
        ("[engine]\nthreads = 'two'", "threads"),
        ("[engine]\nthreads = 0", "threads"),
        ("[server]\nport = 99999", "port"),
        ("[server]\nmax_choices = 0", "max_choices"),
        ("[server]\nwrite_seconds = 0", "write_seconds"),
        ("[server]\nserved_model_name = ''", "served_model_name"),
        ("[server]\ndrain_seconds = nan", "drain_seconds"),
        ("[server]\nhost = '0.0.0.0'", "loopback"),
        ("[server", "config"),
    ],
)
def test_a_bad_setting_stops_the_start(tmp_path: Path, text: str, said: str) -> None:
    """Unknown, mistyped and impossible settings are one line that names them."""
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    """A missing file, a folder and a file of wrong bytes say so."""
    wrong = tmp_path / "wrong.toml"
    wrong.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path, wrong):
        with pytest.raises(ConfigError, match="config"):
            load_config(path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    """Addresses that only this machine reaches may be bound."""
    assert Settings(server=GatewayConfig(host=host)).server.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])  # noqa: S104
def test_other_addresses_are_refused(host: str) -> None:
    """Without keys the server would be open to others, so it does not start."""
    with pytest.raises(ConfigError, match="API keys"):
        Settings(server=GatewayConfig(host=host))


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("512MiB", 512 * 2**20),
        ("2GiB", 2 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("64kib", 2**16),
        ("4096", 4096),
        ("1TiB", 2**40),
    ],
)
def test_amounts_are_read(text: str, n_bytes: int) -> None:
    """Binary and decimal units, in any case, or plain bytes."""
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "1GiBB", "0", "1 2", "GiB", "1e9", "0.1"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    """Anything else is an error that shows how it is written."""
    with pytest.raises(ConfigError, match="512MiB"):
        parse_bytes(text)
