"""Ids that nobody can guess, from few calls to the system."""

from __future__ import annotations

from collections.abc import Callable

_ID_BYTES = 16
_IDS_AT_ONCE = 256


class RandomIds:
    """Makes ids of 32 hexadecimal digits. Used from any thread."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        """Make it; `random_bytes` is asked for those of many ids at once."""
        self._random_bytes = random_bytes
        self._ready: list[str] = []

    def __call__(self) -> str:
        """Return an id that was never returned before."""
        while True:
            try:
                return self._ready.pop()  # atomic, so that no two threads get the same
            except IndexError:
                self._ready.extend(self._batch())

    def _batch(self) -> list[str]:
        digits = self._random_bytes(_ID_BYTES * _IDS_AT_ONCE).hex()
        step = 2 * _ID_BYTES
        return [digits[start : start + step] for start in range(0, len(digits), step)]
