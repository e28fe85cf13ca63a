"""Reading a URL's query into a typed value, for every dialect."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from aiohttp import web

from gateway.errors import InvalidRequestError

_T = TypeVar("_T", bound=msgspec.Struct)


def decode_query(request: web.Request, kind: type[_T]) -> _T:
    """Return the request's query as a `kind`, whose fields are the parameters' names.

    Numbers and true and false are written as text. Of a parameter that comes several times the
    last counts; unknown ones are ignored.

    Raises:
        InvalidRequestError: a value is of the wrong type or out of range; `param` names it.
    """
    known = {name: value for name, value in request.query.items() if name in kind.__struct_fields__}
    for name, value in known.items():
        try:
            msgspec.convert({name: value}, kind, strict=False)
        except msgspec.ValidationError as error:
            reason = str(error).partition(" - at ")[0]
            raise InvalidRequestError(f"{name}: {reason}", name) from error
    return msgspec.convert(known, kind, strict=False)
