"""Requests that name a published prompt instead of sending its text and tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.errors import InvalidRequestError, PromptNotFoundError
from gateway.published import JsonObject, PublishedPrompt
from gateway.service import Service
from gateway.tenants import Tenant

PromptName = Annotated[str, Meta(min_length=1, max_length=64)]
Version = Annotated[int, Meta(ge=1, le=2**31 - 1)]

_SYSTEM_ROLES = ("system", "developer")


class NamedPrompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published prompt that a conversation begins with."""

    name: PromptName
    version: Version | None = None  # None: the current one


def prompt_named(service: Service, tenant: Tenant, asked: NamedPrompt) -> PublishedPrompt:
    """Return what a request of `tenant` names. Raises PromptNotFoundError, RetiredVersionError."""
    return service.prompts.find(asked.name, asked.version, tenant=tenant)


def version_of(name: str, text: str) -> int:
    """Return a version that is written as text. Raises PromptNotFoundError: it cannot be one."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise PromptNotFoundError(name)
    return int(text)


def refuse_beside_prompt(roles: Iterable[str], fields: Mapping[str, object], place: str) -> None:
    """Refuse what a published prompt says already: instructions, system messages, tools.

    Args:
        roles: of the messages in the field `place`.
        fields: others that may say the same, by name.

    Raises:
        InvalidRequestError: one does.
    """
    for name, value in fields.items():
        if value:
            _refuse(name)
    for index, role in enumerate(roles):
        if role in _SYSTEM_ROLES:
            _refuse(f"{place}[{index}]")


def system_message(prompt: PublishedPrompt) -> JsonObject:
    """Return what stands before all messages."""
    return {"role": "system", "content": prompt.system}


def _refuse(param: str) -> None:
    raise InvalidRequestError(
        f"{param}: the published prompt has the system's text and the tools; leave this out, or"
        " send all of it and no prompt",
        param,
    )
