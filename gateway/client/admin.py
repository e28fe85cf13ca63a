"""An operator's questions to a running server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
import click
import msgspec
from aiohttp import hdrs

from gateway.errors import GatewayError

KEY_VARIABLE = "PREFIXCACHE_KEY"
_T = TypeVar("_T")
_TIMEOUT_SECONDS = 30.0
_LONGEST_REASON = 300


class AdminError(GatewayError):
    """A server does not answer an operator's question; the text says why."""


class _Failure(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    error: _Failure


def ask_server(url: str, path: str, kind: type[_T], *, key_file: Path | None, **query: str) -> _T:
    """Return the answer to GET `path`, read as `kind`.

    The admin's key is the text of `key_file`, or of the variable PREFIXCACHE_KEY; a server
    without keys needs none.

    Raises:
        AdminError: there is no such server, it refuses, or its answer is something else.
    """
    return tell_server(url, (hdrs.METH_GET, path), kind, key_file=key_file, query=query)


def tell_server(
    url: str,
    route: tuple[str, str],
    kind: type[_T],
    *,
    key_file: Path | None,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, object] | None = None,
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> _T:
    """Return the answer to a method of a path, read as `kind`. Key and errors: as `ask_server`.

    Args:
        route: the method, and the path after the server's URL.
        body: sent as JSON.
    """
    key = admin_key(key_file)
    headers: dict[str, str] = {} if key is None else {hdrs.AUTHORIZATION: f"Bearer {key}"}
    method, path = route
    asked = _Question(method, url.rstrip("/") + path, headers, query or {}, body, timeout_seconds)
    answer = asyncio.run(_answer(asked))
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AdminError(f"{url} does not answer as this version of prefixcache does") from error


def admin_key(key_file: Path | None) -> str | None:
    """Return the key to send; None: none. Raises AdminError when the file cannot be read."""
    if key_file is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        return key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AdminError(f"{key_file} cannot be read as a key") from error


def json_text(value: object) -> str:
    """Return an answer as JSON for people."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


@dataclass(frozen=True, slots=True)
class _Question:
    method: str
    url: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, object] | None
    timeout_seconds: float


async def _answer(asked: _Question) -> bytes:
    url = asked.url
    timeout = aiohttp.ClientTimeout(total=asked.timeout_seconds)
    data = None if asked.body is None else msgspec.json.encode(asked.body)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                asked.method,
                url,
                params=asked.query,
                headers=asked.headers,
                data=data,
                allow_redirects=False,
            ) as response,
        ):
            answer = await response.read()
    except (aiohttp.ClientError, ValueError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise AdminError(f"{url} cannot be asked: {reason}") from error
    if response.status != 200:
        raise AdminError(f"{url} answers {response.status}: {_reason(answer)}")
    return answer


def _reason(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=_Refusal).error.message[:_LONGEST_REASON]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "no reason is given"


key_file_option = click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    help=f"File with the admin's key.  [default: the variable {KEY_VARIABLE}]",
)
