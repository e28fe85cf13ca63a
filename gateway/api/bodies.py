"""Reading a JSON body into a typed value, for every dialect."""

from __future__ import annotations

import re
from threading import Lock
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from gateway.api.faults import deep_field, syntax_fault
from gateway.errors import InvalidRequestError

Salt = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

_T = TypeVar("_T")
_AT = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_INNER = re.compile(r"(?:missing required|contains unknown) field `(?P<path>[^`]+)`")
_BYTE = re.compile(r"\(byte (?P<at>[0-9]+)\)$")
_ANY_KEY = "[...]"  # what msgspec says in place of an object's free key


def decode_body(
    decoder: msgspec.json.Decoder[_T],
    body: bytes | msgspec.Raw,
    *,
    turn: Lock,
    field: str | None = None,
) -> _T:
    """Return the body as the decoder's type.

    Args:
        field: where in the whole body this part of it stands.
        turn: held meanwhile. Decoding keeps the interpreter to itself, so that two threads one
            right after the other would keep the event loop waiting for both.

    Raises:
        InvalidRequestError: it is not JSON in UTF-8 (half a surrogate pair is not), is nested
            too deeply, or a field is missing or of the wrong type; `param` names the field.
    """
    try:
        with turn:
            return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), field) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _syntax_error(bytes(body), str(error), field) from error
    except RecursionError as error:
        raise too_deep(bytes(body), field) from error


def too_deep(body: bytes, field: str | None = None) -> InvalidRequestError:
    """Return the error for a body that is nested too deeply, with the field that is."""
    inner = deep_field(body)
    return _error("nested too deeply", _joined(field, inner))


def convert_part(part: object, kind: type[_T], field: str) -> _T:
    """Return a decoded part of a body, which stands at `field`, as `kind`.

    Raises:
        InvalidRequestError: a field of it is missing or of the wrong type; `param` names it.
    """
    try:
        return msgspec.convert(part, kind)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), field) from error


def _syntax_error(body: bytes, text: str, field: str | None) -> InvalidRequestError:
    found = _BYTE.search(text)
    fault = syntax_fault(body, int(found["at"]) if found else None)
    return _error(f"not valid JSON in UTF-8: {fault.reason or text}", _joined(field, fault.field))


def convert_body(value: object, kind: type[_T]) -> _T:
    """Return a decoded body as `kind`; numbers may have come as texts.

    Raises:
        InvalidRequestError: a field is missing or of the wrong type; `param` names it.
    """
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), None) from error


def _field_error(text: str, field: str | None) -> InvalidRequestError:
    """Name the field at fault; msgspec tells it in its message alone."""
    at, inner = _AT.search(text), _INNER.search(text)
    path = _joined(field, at["path"].partition(_ANY_KEY)[0] if at else None)
    if inner:
        path = _joined(path, inner["path"])
    return _error(text[: at.start()] if at else text, path)


def _joined(field: str | None, inner: str | None) -> str | None:
    if not field or not inner:
        return field or inner or None
    return field + inner if inner.startswith("[") else f"{field}.{inner}"


def _error(reason: str, field: str | None) -> InvalidRequestError:
    return InvalidRequestError(f"{field or 'the body'}: {reason}", field)
