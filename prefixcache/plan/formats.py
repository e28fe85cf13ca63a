"""In how many bytes keys and values can be kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from prefixcache.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KvFormat:
    """One way to keep numbers: so many bits each, and something for each group of them."""

    name: str
    bits: int
    group: int = 1  # numbers that share a scale
    scale_bytes: int = 0  # of a group: a scale, and an offset where there is one

    def bytes_of(self, n_numbers: int) -> Fraction:
        """Return the bytes of so many numbers, scales included. Exact."""
        scales = Fraction(n_numbers * self.scale_bytes, self.group)
        return Fraction(n_numbers * self.bits, 8) + scales


FORMATS: Mapping[str, KvFormat] = MappingProxyType(
    {
        each.name: each
        for each in (
            KvFormat("float32", 32),
            KvFormat("bfloat16", 16),
            KvFormat("float16", 16),
            KvFormat("fp8", 8),
            KvFormat("int8", 8, group=64, scale_bytes=2),
            KvFormat("int4", 4, group=32, scale_bytes=4),
        )
    }
)


def kv_format(name: str) -> KvFormat:
    """Return the format called `name`. Raises ConfigError with those that there are."""
    if name not in FORMATS:
        raise ConfigError("kv_format", name, f"must be one of {', '.join(FORMATS)}")
    return FORMATS[name]


def format_of(number_bytes: int) -> KvFormat:
    """Return the format of a checkpoint whose numbers have so many bytes."""
    return FORMATS[{4: "float32", 2: "bfloat16", 1: "fp8"}[number_bytes]]
