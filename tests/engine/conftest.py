"""What the engine's tests share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny models gain nothing from threads, and on a busy machine lose much by them."""
    torch.set_num_threads(1)
