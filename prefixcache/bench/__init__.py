"""Workloads and measurement of our own parts."""

from prefixcache.bench.machine import machine
from prefixcache.bench.straight import StraightStep

__all__ = ["StraightStep", "machine"]
