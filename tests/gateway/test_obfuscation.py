"""Padded events do not tell by their size what is in them."""

from __future__ import annotations

import json
from itertools import count

from gateway.api.obfuscation import obfuscated


def noise() -> str:
    return "abcdef0123"


def test_sizes_are_multiples_of_one_step() -> None:
    """Whatever is in it, an object has a multiple of 64 bytes and is otherwise unchanged."""
    for n in range(200):
        data = json.dumps({"delta": "x" * n}, separators=(",", ":")).encode()
        padded = obfuscated(data, noise)
        assert len(padded) % 64 == 0
        assert len(padded) >= len(data)
        found = json.loads(padded)
        found.pop("obfuscation")
        assert found == {"delta": "x" * n}


def test_noise_is_fresh_each_time() -> None:
    """The padding of two equal objects differs where the noise does."""
    numbers = count()
    first, second = (obfuscated(b'{"a":1}', lambda: f"{next(numbers):032d}") for _ in range(2))
    assert first != second
    assert len(first) == len(second)
