"""Published prompts as values: what an operator shares, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.tenants import Tenant

JsonObject = dict[str, object]


class PromptDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be published."""

    name: str
    version: int | None = None  # None: one more than the last
    system: str  # the system's text
    tools: tuple[JsonObject, ...] = ()  # as in a chat's body
    tenants: tuple[str, ...] | None = None  # None: all
    adapter: str | None = None  # whose requests are to find it cached; None: the model's own
    ttl_seconds: float | None = None  # None: until it is retired
    pin: bool = True  # False: given up like anything else when room is short


class PublishedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a published prompt."""

    name: str
    version: int
    system: str
    tools: tuple[JsonObject, ...] = ()
    tenants: tuple[str, ...] | None = None
    adapter: str | None = None
    created: float  # seconds since the epoch
    expires: float | None = None
    pin: bool = True

    @classmethod
    def of(cls, draft: PromptDraft, version: int, now: float) -> PublishedPrompt:
        """Return a draft as the version that it becomes."""
        return cls(
            name=draft.name,
            version=version,
            system=draft.system,
            tools=draft.tools,
            tenants=draft.tenants,
            adapter=draft.adapter,
            created=now,
            expires=None if draft.ttl_seconds is None else now + draft.ttl_seconds,
            pin=draft.pin,
        )

    def says(self, draft: PromptDraft) -> bool:
        """Whether publishing `draft` would change nothing."""
        same = PublishedPrompt.of(draft, self.version, self.created)
        return draft.version == self.version and self == same

    def is_over(self, now: float) -> bool:
        """Whether its lifetime has ended."""
        return self.expires is not None and self.expires <= now

    def is_for(self, tenant: Tenant) -> bool:
        """Whether `tenant` may use it."""
        return may_use(tenant, self.name, self.tenants)


class Retirement(msgspec.Struct, frozen=True, kw_only=True):
    """The last version of a name that is published no more. Its text is forgotten."""

    name: str
    version: int
    tenants: tuple[str, ...] | None = None


def may_use(tenant: Tenant, name: str, audience: tuple[str, ...] | None) -> bool:
    """Whether `tenant` may use a prompt that is published to `audience` (None: to all).

    The prompts in its limits are those that it shares: one for it alone needs not be named there.
    """
    if audience == (tenant.name,):
        return True
    return (audience is None or tenant.name in audience) and tenant.may_use_prompt(name)


def audience_of(prompt: PublishedPrompt, tenants: Iterable[Tenant]) -> tuple[str, ...] | None:
    """Return those of all `tenants` that may use `prompt`, by name; None: everybody may."""
    known = list(tenants)
    allowed = [tenant.name for tenant in known if prompt.is_for(tenant)]
    if prompt.tenants is None and len(allowed) == len(known):
        return None
    return tuple(allowed)
