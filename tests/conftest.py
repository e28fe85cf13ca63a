"""What tests in every folder may ask for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's folder, fetched once into the user's own cache (marker `model`)."""
    from prefixcache.engine.resolve import resolve_model  # torch: not for every test's start

    folder = resolve_model(None, env=os.environ, report=lambda line: print(line, file=sys.stderr))
    assert isinstance(folder, Path)
    return folder
