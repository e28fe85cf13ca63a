"""The small chat model that is measured where no other is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from prefixcache.engine.resolve import resolve_model


def small_model_folder(env: Mapping[str, str], report: Callable[[str], None]) -> Path:
    """Return its folder; it is fetched once. Raises ModelError where it cannot be."""
    return Path(resolve_model(None, env=env, report=report))
