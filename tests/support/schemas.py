"""Values that a JSON schema allows, and some that it does not, for tests that try many."""

from __future__ import annotations

import random
import string
from typing import Any

JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "\x00",
    "x" * 3000,
    "\ud7ff🙂",
    [],
    [[]],
    [None],
    {},
    {"a": {"b": [1]}},
    [{"type": "text"}],
)
_LETTERS = string.ascii_letters + " .,:{}[]\"'<|>\n\té🙂"
_MOST = 4  # items of what has no limit of its own


class SchemaValues:
    """Draws values from the schemas of one OpenAPI document, the same for the same `rng`."""

    def __init__(self, document: Any, rng: random.Random) -> None:
        self._document = document
        self._rng = rng

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value that `schema` allows, as far as its keywords are those of our types."""
        rng = self._rng
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.value(self._document["components"]["schemas"][name], depth)
        if "anyOf" in schema:
            return self.value(rng.choice(schema["anyOf"]), depth)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type")
        if kind is None:  # anything
            return rng.choice(JUNK)
        return getattr(self, f"_{kind}")(schema, depth)

    def spoiled(self, value: Any) -> Any:
        """Return `value` with junk in one place of it."""
        if self._rng.random() < 0.3 or not isinstance(value, dict | list) or not value:
            return self._rng.choice(JUNK)
        copied = value.copy()
        key = self._rng.choice(list(value)) if isinstance(value, dict) else 0
        copied[key] = self.spoiled(value[key])
        return copied

    def _null(self, schema: Any, depth: int) -> None:
        return None

    def _boolean(self, schema: Any, depth: int) -> bool:
        return self._rng.random() < 0.5

    def _integer(self, schema: Any, depth: int) -> int:
        low = schema.get("minimum", -(2**40))
        high = schema.get("maximum", 2**40)
        near = [low, high, max(low, min(high, 1)), max(low, min(high, 3))]
        return int(self._rng.choice([*near, self._rng.randint(low, high)]))

    def _number(self, schema: Any, depth: int) -> float:
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1e9) + 1e-6)
        high = schema.get("maximum", 1e9)
        return float(self._rng.choice([low, high, self._rng.uniform(low, high)]))

    def _string(self, schema: Any, depth: int) -> str:
        shortest = schema.get("minLength", 0)
        longest = min(schema.get("maxLength", 30), shortest + 30)
        letters = string.ascii_lowercase if "pattern" in schema else _LETTERS
        n = self._rng.randint(shortest, longest)
        return "".join(self._rng.choice(letters) for _ in range(n))

    def _array(self, schema: Any, depth: int) -> list[Any]:
        shortest = schema.get("minItems", 0)
        longest = min(schema.get("maxItems", _MOST), max(shortest, _MOST - depth))
        n = self._rng.randint(shortest, max(shortest, longest))
        return [self.value(schema.get("items", {}), depth + 1) for _ in range(n)]

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        needed = schema.get("required", ())
        share = self._rng.choice([0.02, 0.1, 0.4])
        found = {
            name: self.value(inner, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in needed or self._rng.random() < share
        }
        extra = schema.get("additionalProperties")
        if extra not in (None, False) and depth < _MOST:
            n = self._rng.randint(0, min(schema.get("maxProperties", 2), 2))
            keys = (self._string(schema.get("propertyNames", {}), depth) for _ in range(n))
            found |= {key: self.value(extra, depth + 1) for key in keys}
        return found
