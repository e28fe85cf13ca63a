"""Reading a JSON body into a typed value, for every dialect."""

from __future__ import annotations

import re
from threading import Lock
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from gateway.errors import InvalidRequestError

Salt = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

_T = TypeVar("_T")
_AT = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<path>[^`]+)`")


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
        raise InvalidRequestError(f"the body is not valid JSON in UTF-8: {error}", field) from error
    except RecursionError as error:
        raise InvalidRequestError("the body is nested too deeply", field) from error


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
    at, missing = _AT.search(text), _MISSING.search(text)
    path = (field or "") + (at["path"] if at else "")
    if missing:
        path = f"{path}.{missing['path']}" if path else missing["path"]
    reason = text[: at.start()] if at else text
    return InvalidRequestError(f"{path}: {reason}" if path else reason, path or None)
