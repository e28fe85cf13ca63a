"""Waiting for something to become true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Return once `condition` is true; TimeoutError when it seems that it never will be."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions are plain values, not events
            await asyncio.sleep(0.005)
