"""Models that are known without their files, by the figures that their publishers give."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


def known_models() -> list[str]:
    """Return the names, as their publishers write them."""
    return sorted(_catalogue())


def known_config(name: str) -> Mapping[str, object] | None:
    """Return the fields of a known model's configuration; letters may be large or small."""
    by_name = {known.lower(): fields for known, fields in _catalogue().items()}
    return by_name.get(name.lower().rsplit("/", 1)[-1])


@cache
def _catalogue() -> Mapping[str, Mapping[str, object]]:
    text = files("prefixcache.plan").joinpath("models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
