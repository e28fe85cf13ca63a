"""Where load is sent."""

from __future__ import annotations

import pytest

from gateway.client.load import load
from gateway.client.streaming import BenchError


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://:80"])
async def test_a_url_without_a_host_is_refused(url: str) -> None:
    """It is said so, before anything is connected to."""
    with pytest.raises(BenchError, match="names no host"):
        await load(url, b"", at_once=2, seconds=1)
