"""Responses that are kept for their tenants: to be looked up, and to go on from."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gateway.api.responses_models import InputItem
from gateway.api.responses_replies import (
    CacheDiagnostics,
    CacheHit,
    CacheMiss,
    NothingToCompare,
    Response,
    Unavailable,
)
from gateway.errors import PreviousResponseNotFoundError, ResponseNotFoundError
from gateway.memory import TenantMemory
from prefixcache.index import common_prefix_tokens
from prefixcache.index.tokens import n_tokens
from prefixcache.types import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponse:
    """A response, and the conversation that it belongs to."""

    id: str
    reply: bytes  # the response as JSON
    context: tuple[InputItem, ...]  # what the model was given but for the instructions
    output: tuple[InputItem, ...]  # what it said
    model: str
    tools: bytes  # as JSON
    prompt: bytes  # packed token ids
    conversation_bytes: int  # about; what earlier responses share of it counts again

    @property
    def conversation(self) -> tuple[InputItem, ...]:
        """What a response that goes on from this one begins with."""
        return self.context + self.output


class KeptResponses:
    """The responses of all tenants, each one's own. Safe to use from many threads at once."""

    def __init__(self, memory: TenantMemory[KeptResponse]) -> None:
        self._memory = memory

    def keep(self, tenant: str, response: KeptResponse) -> None:
        """Remember `response` for a time."""
        n_bytes = response.conversation_bytes + len(response.prompt)
        self._memory.put(tenant, response.id, response, n_bytes=n_bytes)

    def find(self, tenant: str, response_id: str) -> KeptResponse | None:
        """Return a response of `tenant`, if it is still kept."""
        return self._memory.get(tenant, response_id)

    def shown(self, tenant: str, response_id: str) -> KeptResponse:
        """Return a response of `tenant`. Raises ResponseNotFoundError."""
        found = self.find(tenant, response_id)
        if found is None:
            raise ResponseNotFoundError(response_id)
        return found

    def previous(self, tenant: str, response_id: str) -> KeptResponse:
        """Return what a new response goes on from. Raises PreviousResponseNotFoundError."""
        found = self.find(tenant, response_id)
        if found is None:
            raise PreviousResponseNotFoundError(response_id)
        return found

    def forget(self, tenant: str, response_id: str) -> None:
        """Forget a response of `tenant`; what went on from it stays whole.

        Raises:
            ResponseNotFoundError: it is not kept.
        """
        if self._memory.pop(tenant, response_id) is None:
            raise ResponseNotFoundError(response_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """Takes note of one response when it is over, and compares it with an earlier one."""

    kept: KeptResponses
    tenant: str
    context: tuple[InputItem, ...]
    model: str
    tools: bytes
    prompt: bytes
    context_bytes: int

    def keep(self, response: Response) -> None:
        """Keep `response`, unless its client wants it not to be."""
        if not response.store:
            return
        reply = msgspec.json.encode(response)
        output = msgspec.convert(msgspec.to_builtins(response.output), tuple[InputItem, ...])
        self.kept.keep(
            self.tenant,
            KeptResponse(
                id=response.id,
                reply=reply,
                context=self.context,
                output=output,
                model=self.model,
                tools=self.tools,
                prompt=self.prompt,
                conversation_bytes=self.context_bytes + len(reply),
            ),
        )

    def diagnosis(self, compared: str, usage: Usage) -> CacheDiagnostics:
        """Return whether the prompt begins with all of the one of the response `compared`.

        A prompt that begins alike and yet found nothing tells of no difference between the two:
        what was cached has gone, or was not to be read.
        """
        earlier = self.kept.find(self.tenant, compared)
        if earlier is None:
            return NothingToCompare()
        is_same_model = self.model == earlier.model
        n_shared = common_prefix_tokens(earlier.prompt, 0, self.prompt, 0) * is_same_model
        if is_same_model and n_shared == n_tokens(earlier.prompt):
            return CacheHit() if usage.cached_tokens else Unavailable()
        return CacheMiss(
            reason=self._difference(earlier),
            cache_missed_tokens=n_tokens(self.prompt) - n_shared,
            comparison_reusable_tokens=n_shared,
        )

    def _difference(self, earlier: KeptResponse) -> str:
        if self.model != earlier.model:
            return "model_changed"
        return "tools_changed" if self.tools != earlier.tools else "input_changed"
