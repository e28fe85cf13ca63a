"""Workloads and measurement of our own parts. `straight` and `attention` alone need torch."""

from prefixcache.bench.machine import machine

__all__ = ["machine"]
