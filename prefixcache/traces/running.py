"""How long a request of a replay runs: always the same, or as the trace has measured it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from prefixcache.errors import ConfigError
from prefixcache.traces.records import TraceRequest

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class RunningTimes:
    """Makes requests overlap, as `replayed` says.

    Args:
        seconds: how long each one runs; None: as long as the trace says. Whose length a
            trace does not tell is over at once.

    Raises:
        ConfigError: the seconds are below 0 or not finite.
    """

    seconds: float | None

    def __post_init__(self) -> None:
        if self.seconds is not None and not (self.seconds >= 0 and isfinite(self.seconds)):
            raise ConfigError("running_seconds", self.seconds, "must be a number of at least 0")

    @property
    def shown(self) -> float | str:
        """The seconds, or a word for what was measured."""
        return MEASURED if self.seconds is None else self.seconds

    def is_known(self, request: TraceRequest) -> bool:
        """Whether it is known how long this one runs."""
        return self.seconds is not None or request.duration_seconds is not None

    def of(self, request: TraceRequest) -> float:
        """Return how long a request runs, from its start on."""
        return (request.duration_seconds or 0.0) if self.seconds is None else self.seconds
