"""When made-up requests arrive."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from prefixcache.errors import ConfigError

_DEFAULT_BURST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How arrivals are spread over time, `per_second` of them on average, the first one at 0.

    `fixed`: evenly; `poisson`: each independent of all others; `bursts`: `burst` at one moment,
    and the bursts evenly.
    """

    process: str = "poisson"
    per_second: float = 1.0
    burst: int = _DEFAULT_BURST

    def __post_init__(self) -> None:
        if self.process not in ARRIVALS:
            raise ConfigError("process", self.process, f"must be one of {', '.join(ARRIVALS)}")
        if not (self.per_second > 0 and isfinite(self.per_second)):
            raise ConfigError("per_second", self.per_second, "must be a number above 0")
        if self.burst < 1:
            raise ConfigError("burst", self.burst, "must be at least 1")

    def seconds(self, rng: random.Random) -> Iterator[float]:
        """Yield arrivals without end, in seconds from the first one, never falling."""
        return ARRIVALS[self.process](self, rng)


def _fixed(arrivals: Arrivals, _: random.Random) -> Iterator[float]:
    number = 0
    while True:
        yield number / arrivals.per_second
        number += 1


def _poisson(arrivals: Arrivals, rng: random.Random) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += rng.expovariate(arrivals.per_second)


def _bursts(arrivals: Arrivals, _: random.Random) -> Iterator[float]:
    number = 0
    while True:
        yield number // arrivals.burst * arrivals.burst / arrivals.per_second
        number += 1


ARRIVALS: Mapping[str, Callable[[Arrivals, random.Random], Iterator[float]]] = MappingProxyType(
    {"poisson": _poisson, "fixed": _fixed, "bursts": _bursts}
)
