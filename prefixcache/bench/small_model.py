"""The small chat model that is measured where no other is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from prefixcache.engine.resolve import resolve_model, serving_folder


def small_model_folder(env: Mapping[str, str], report: Callable[[str], None]) -> Path:
    """Return its folder; it is fetched once. Raises ModelError where it cannot be."""
    return serving_folder(resolve_model(None, env=env, report=report), env=env, report=report)
