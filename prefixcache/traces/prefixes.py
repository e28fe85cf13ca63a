"""Numbers for prefixes, so that whoever walks a trace compares integers."""

from __future__ import annotations

from collections.abc import Iterable


class Prefixes:
    """Numbers prefixes, one for each block of a prompt, from 1 on in the order of their coming.

    A block is what its id and all ids before it are: a block after two different prefixes is
    two blocks, whatever the trace calls it.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}  # by the number before and the hash id

    def __len__(self) -> int:
        return len(self._numbers)

    def path(self, hash_ids: Iterable[int]) -> list[int]:
        """Return the numbers of the prompt's prefixes, shortest first. O(1) a block."""
        numbers, number = self._numbers, 0
        path = []
        for hash_id in hash_ids:
            number = numbers.setdefault((number, hash_id), len(numbers) + 1)
            path.append(number)
        return path
