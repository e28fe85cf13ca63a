"""Tools with their keys in one order, so that equal tools make equal prompts."""

from __future__ import annotations

from collections.abc import Mapping

# As models were shown tools; what is not listed follows by name.
_FIRST = ("type", "function", "name", "description", "parameters", "properties", "required")
_RANKS = {key: rank for rank, key in enumerate(_FIRST)}


def canonical(value: object) -> object:
    """Return a JSON value with the keys of all its objects in one order; arrays keep theirs.

    Raises:
        RecursionError: it is nested too deeply.
    """
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: (_RANKS.get(key, len(_RANKS)), key))
        return {key: canonical(value[key]) for key in keys}
    if isinstance(value, list | tuple):
        return [canonical(part) for part in value]
    return value
