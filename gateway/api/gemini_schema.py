"""The OpenAPI schemas of the Gemini dialect as JSON schemas."""

from __future__ import annotations

from gateway.api.tool_use import JsonObject
from gateway.errors import InvalidRequestError

_NESTED = ("items", "additionalProperties")
_LISTS = ("anyOf", "prefixItems")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_PLAIN = ("description", "title", "enum", "required", "pattern", "minimum", "maximum", "default")
_FORMATS = ("date", "date-time", "time", "duration", "email", "uuid", "uri", "ipv4", "ipv6")
_NAMES = {
    name.lower().replace("_", ""): name
    for name in (*_NESTED, *_LISTS, *_COUNTS, "propertyOrdering")
}


def json_schema(schema: JsonObject, param: str) -> JsonObject:
    """Return a schema with lower-case types, null among the types, and nothing of OpenAPI's own.

    Formats that say how a number is stored are left out. Properties have `propertyOrdering`'s
    order where there is one.

    Raises:
        InvalidRequestError: it is no schema; `param` is the field that it came from.
    """
    found: JsonObject = {}
    named = {_NAMES.get(key.lower().replace("_", ""), key): value for key, value in schema.items()}
    for key, value in named.items():
        if key in _PLAIN:
            found[key] = value
        elif key in _COUNTS:
            found[key] = _count(value, f"{param}.{key}")
        elif key in _NESTED:
            found[key] = value if isinstance(value, bool) else _inner(value, f"{param}.{key}")
        elif key in _LISTS and isinstance(value, list):
            found[key] = [_inner(each, f"{param}.{key}") for each in value]
        elif key == "format" and value in _FORMATS:
            found[key] = value
    if "properties" in named:
        found["properties"] = _properties(named, f"{param}.properties")
    return found | _types(named, param)


def _types(schema: JsonObject, param: str) -> JsonObject:
    kind = schema.get("type")
    if kind is None or kind == "TYPE_UNSPECIFIED":
        return {}
    if not isinstance(kind, str):
        raise InvalidRequestError(f"{param}.type: a text is needed", f"{param}.type")
    name = kind.lower()
    return {"type": [name, "null"] if schema.get("nullable") is True else name}


def _properties(schema: JsonObject, param: str) -> JsonObject:
    properties, order = schema["properties"], schema.get("propertyOrdering")
    if not isinstance(properties, dict):
        raise InvalidRequestError(f"{param}: an object is needed", param)
    listed = [name for name in order if name in properties] if isinstance(order, list) else []
    names = dict.fromkeys([*listed, *properties])
    return {name: _inner(properties[name], f"{param}.{name}") for name in names}


def _inner(value: object, param: str) -> JsonObject:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{param}: a schema is needed", param)
    return json_schema(value, param)


def _count(value: object, param: str) -> int:
    """Return a 64-bit number, which this dialect may write as a text."""
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).isdigit():
        raise InvalidRequestError(f"{param}: a count is needed", param)
    return int(value)
