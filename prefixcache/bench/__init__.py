"""Workloads and measurement of our own parts. `straight` alone needs torch."""

from prefixcache.bench.machine import machine

__all__ = ["machine"]
