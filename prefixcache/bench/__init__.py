"""Workloads and measurement of our own parts.

Only `straight`, `attention` and `quality` need torch.
"""

from prefixcache.bench.machine import machine

__all__ = ["machine"]
