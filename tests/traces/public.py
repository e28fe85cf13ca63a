"""The public traces, for tests that run where they are."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pytest

from prefixcache.traces import TraceRequest, read_trace

TRACES = os.environ.get("PREFIXCACHE_TRACES")

needs_traces = pytest.mark.skipif(
    TRACES is None, reason="PREFIXCACHE_TRACES names no folder with traces"
)


@lru_cache
def public_trace(name: str) -> list[TraceRequest]:
    """Return a trace of that folder."""
    assert TRACES is not None
    return read_trace(Path(TRACES) / name)
