"""Padding, so that the sizes of a stream's pieces do not tell what is in them."""

from __future__ import annotations

from collections.abc import Callable

_STEP_BYTES = 64
_FIELD = b',"obfuscation":"%b"}'
_FIELD_BYTES = len(_FIELD) - len(b"%b")


def obfuscated(data: bytes, noise: Callable[[], str]) -> bytes:
    """Return the JSON object `data` with a field of noise that makes it a multiple of 64 bytes.

    Args:
        data: an object with at least one field.
        noise: gives fresh letters and digits, at least one at a time.
    """
    missing = -(len(data) - 1 + _FIELD_BYTES) % _STEP_BYTES
    letters = ""
    while len(letters) < missing:
        letters += noise()
    return data[:-1] + _FIELD % letters[:missing].encode()
