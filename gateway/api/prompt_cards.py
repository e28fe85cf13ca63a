"""What is told of published prompts: to tenants, to the operator, and on the operator's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.published import JsonObject
from gateway.publisher import Entry
from gateway.service import Service

Status = Literal["ready", "reading", "failed"]


class PromptCard(msgspec.Struct, frozen=True, kw_only=True):
    """A published prompt. What is only for its operator is left out for tenants."""

    object: str = "prompt"
    name: str
    version: int
    status: Status
    n_tokens: int | None  # that its conversations share; null: not known yet
    cached_tokens: int  # of these, now, in whole blocks
    model: str
    created: int
    expires: int | None
    pin: bool
    tenants: tuple[str, ...] | UnsetType | None = UNSET  # null: all
    trouble: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    tools: tuple[JsonObject, ...] | UnsetType = UNSET


def cards_of(
    service: Service,
    entries: Sequence[Entry],
    cached_tokens: Mapping[str, int],
    *,
    for_admin: bool,
    with_text: bool = False,
) -> list[PromptCard]:
    """Return what is told of `entries`.

    Args:
        cached_tokens: how much of each publication is cached now, by its id.
        for_admin: also what is only for the operator; with `with_text` the texts, too.

    Raises:
        DrainingError, NotReadyError: there is no model now.
    """
    model = service.served().names[0] if entries else ""
    return [
        _card(entry, _cached(entry, cached_tokens), model, for_admin, with_text)
        for entry in entries
    ]


def _cached(entry: Entry, cached_tokens: Mapping[str, int]) -> int:
    if entry.publication is None:
        return 0
    return cached_tokens.get(entry.publication.prompt_id, 0)


def _card(
    entry: Entry, cached_tokens: int, model: str, for_admin: bool, with_text: bool
) -> PromptCard:
    prompt, state = entry.prompt, entry.state
    waits: Status = "failed" if entry.trouble else "reading"
    return PromptCard(
        name=prompt.name,
        version=prompt.version,
        status="ready" if state is not None else waits,
        n_tokens=None if state is None else state.n_tokens,
        cached_tokens=cached_tokens,
        model=prompt.adapter or model,
        created=int(prompt.created),
        expires=None if prompt.expires is None else int(prompt.expires),
        pin=prompt.pin,
        tenants=prompt.tenants if for_admin else UNSET,
        trouble=entry.trouble if for_admin and entry.trouble else UNSET,
        system=prompt.system if with_text else UNSET,
        tools=prompt.tools if with_text else UNSET,
    )
