"""What tests in every folder may ask for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes an example slow, not wrong.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

_MOST_WORKERS = 4  # each has torch in memory, and servers of its own


@pytest.hookimpl(optionalhook=True)  # where a run is made without the plugin
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes `-n auto` means."""
    return min(os.cpu_count() or 1, _MOST_WORKERS)


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have servers that tests run keep their accounts elsewhere than the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models gain nothing from threads, and on a busy machine lose much by them."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's folder, fetched once into the user's own cache (marker `model`)."""
    from prefixcache.engine.resolve import resolve_model  # torch: not for every test's start

    folder = resolve_model(None, env=os.environ, report=lambda line: print(line, file=sys.stderr))
    assert isinstance(folder, Path)
    return folder
