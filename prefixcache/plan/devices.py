"""Devices that a model may be served on."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import msgspec

from prefixcache.errors import ConfigError


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device, by its maker's figures."""

    label: str
    memory_bytes: float
    bytes_per_second: float  # of its memory
    flops: float  # dense, in 16 bits

    def __post_init__(self) -> None:
        for setting in ("memory_bytes", "bytes_per_second", "flops"):
            if not 0 < getattr(self, setting) < float("inf"):
                raise ConfigError(setting, getattr(self, setting), "must be above 0")


def known_devices() -> Mapping[str, Device]:
    """Return the devices that come with the library, by name."""
    return _devices(files("prefixcache.plan").joinpath("devices.toml").read_text(encoding="utf-8"))


def read_devices(path: Path) -> Mapping[str, Device]:
    """Return the devices in a file of one's own, of the same form.

    Raises:
        ConfigError: it cannot be read, or a figure is missing, unknown or out of range.
    """
    try:
        return _devices(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("devices", str(path), error.strerror or "cannot be read") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError("devices", str(path), str(error)) from error


def _devices(text: str) -> Mapping[str, Device]:
    return msgspec.convert(tomllib.loads(text), dict[str, Device])
